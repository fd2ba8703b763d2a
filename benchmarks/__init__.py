"""Studies that take long, and what was measured. The benchmark itself is `pointgrad bench`."""
