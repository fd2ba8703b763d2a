"""Show the version beside the name of the project, and link the repository that the documentation is built from."""

import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
# https://[user@]host[:port]/path
WEB = re.compile(r"(https?://)(?:[^@/]+@)?([^@/]+)/(.+?)(?:\.git)?/?")
# ssh://user@host[:port]/path or user@host:path
SSH = re.compile(r"(?:ssh://)?[^@/:]+@([^@/:]+)(?::\d+)?[:/](.+?)(?:\.git)?/?")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    found = VERSION.search((ROOT / "src" / "pointgrad" / "__init__.py").read_text())
    assert found, "pointgrad/__init__.py has no __version__"
    config.site_name = f"{config.site_name} {found[1]}"
    config.repo_url, config.repo_name = repository(_remote())
    return config


def repository(remote: str) -> tuple[str, str] | tuple[None, None]:
    """The web page and the name of a repository, without user name and password; none for a folder."""
    if web := WEB.fullmatch(remote):
        return f"{web[1]}{web[2]}/{web[3]}", web[3]
    if ssh := SSH.fullmatch(remote):
        return f"https://{ssh[1]}/{ssh[2]}", ssh[2]
    return None, None


def _remote() -> str:
    """The address that this checkout was cloned from; empty if it was not cloned."""
    command = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # git is not installed
        return ""
