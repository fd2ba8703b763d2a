"""Long-running measurements, performance targets and committed results. The benchmark itself is `pointgrad bench`."""
