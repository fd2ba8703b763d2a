"""Checks the content of a wheel, and records it with its system requirements and the result of the smoke test.

    python -m reliability.install.wheels WHEEL --sdist SDIST --tags AUDITWHEEL --smoke JSON --commit C --out F

`wheels.sh` runs this with the interpreter of the environment into which the wheel was installed. Adds or replaces the
entry of its versions.
"""

import argparse
import email
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from reliability.arguments import out_file
from reliability.install.versions import key_of_version, versions, write

NOT_FOR_USERS = ("tests", "docs", "examples", "benchmarks", "reliability")
SOURCES = (".cpp", ".h", ".cu")


def wheel_facts(path: Path) -> dict[str, Any]:
    """Size and content of a wheel.

    Raises:
        ValueError: If a file is missing or must not be part of the wheel.
    """
    with zipfile.ZipFile(path) as wheel:
        names = [PurePosixPath(name) for name in wheel.namelist()]
        (info,) = {name.parts[0] for name in names if name.parts[0].endswith(".dist-info")}
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        modules = [name for name in names if name.suffix == ".so" and name.parts[0] == "pointgrad"]
        wrong = [str(name) for name in names if name.suffix in SOURCES or name.parts[0] in NOT_FOR_USERS]
        if wrong:
            raise ValueError(f"{path.name} must not contain C++ sources or tests, got {wrong}")
        if len(modules) != 1:
            raise ValueError(f"{path.name} must contain one C++ module, got {modules}")
        for needed in ("pointgrad/__init__.py", "pointgrad/py.typed", f"{info}/licenses/LICENSE"):
            if PurePosixPath(needed) not in names:
                raise ValueError(f"{path.name} must contain {needed}")
        if metadata["Description-Content-Type"] != "text/markdown" or "# pointgrad" not in metadata.get_payload():
            raise ValueError(f"{path.name} must have README.md as its description")
        compilers = re.findall(rb"(?:GCC|clang)[:\w ]*\([^)\0]*\) [\d.]+", wheel.read(str(modules[0])))
        return {
            "wheel": path.name,
            "bytes": path.stat().st_size,
            "files": len(names),
            "module": modules[0].name,
            "compiler": sorted({each.decode() for each in compilers}),
        }


def same_python_files(wheel: Path, sdist: Path) -> None:
    """Check that the wheel and the source distribution contain the same Python files of the package."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("pointgrad/") and name.endswith(".py")}
    with tarfile.open(sdist) as archive:
        inside = (name.partition("/src/")[2] for name in archive.getnames() if "/src/pointgrad/" in name)
        source = {name for name in inside if name.endswith(".py")}
    if packed != source:
        raise ValueError(
            f"{wheel.name} and {sdist.name} must contain the same Python files, got differences {packed ^ source}"
        )


def platform_tag(text: str) -> dict[str, Any]:
    """Platform tag and newest required versions of system libraries, from the output of `auditwheel show`."""
    text = " ".join(text.split())
    tag = re.search(r'consistent with the following platform tag: "([^"]+)"', text)
    if tag is None:
        raise ValueError(f"the output of auditwheel must contain a platform tag, got {text!r}")
    newest: dict[str, str] = {}
    for symbol in re.findall(r"'((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+)'", text):
        library, _, version = symbol.partition("_")
        newest[library] = max(newest.get(library, "0"), version, key=key_of_version)
    return {"tag": tag[1], "needs": dict(sorted(newest.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel")
    parser.add_argument("--sdist", type=Path, required=True, help="the source distribution it was built from")
    parser.add_argument("--tags", type=Path, required=True, help="output of `auditwheel show`")
    parser.add_argument("--smoke", type=Path, required=True, help="output of smoke.py")
    parser.add_argument("--commit", required=True, help="commit of the source distribution, empty if unknown")
    parser.add_argument("--out", type=out_file, required=True, help="JSON file with the entries of all wheels")
    options = parser.parse_args()
    same_python_files(options.wheel, options.sdist)
    entry = {
        **versions(),
        "commit": options.commit or None,
        **wheel_facts(options.wheel),
        **platform_tag(options.tags.read_text()),
    }
    entry["smoke"] = json.loads(options.smoke.read_text())
    entries = json.loads(options.out.read_text()) if options.out.exists() else []
    entries = [each for each in entries if (each["python"], each["torch"]) != (entry["python"], entry["torch"])]
    entries = sorted([*entries, entry], key=lambda each: key_of_version(each["python"]))
    write(entries, options.out)
    print(f"Python {entry['python']}: {entry['wheel']} works; needs {entry['needs']}, {entry['tag']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
