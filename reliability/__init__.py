"""Programs that try to break pointgrad and count what happened. See README.md."""
