"""Programs that try to break pointgrad and record the outcomes. See README.md."""
