"""Networks as folders and repositories: `save_pretrained`, `from_pretrained` and `push_to_hub`."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from pointgrad import models
from pointgrad.models import Network

safetensors = pytest.importorskip("safetensors.torch")

OPTIONS = {"task": "segmentation", "classes": 3, "channels": 2, "width": 0.125}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    network = models.ptv3(**OPTIONS).eval()
    folder = tmp_path_factory.mktemp("hub") / "ptv3"
    network.save_pretrained(folder)
    return network, folder


@pytest.mark.parametrize("name", models.names())
def test_every_network_returns_with_the_same_weights(name, tmp_path):
    network = models.build(name, task="segmentation", classes=3, channels=1, width=0.125, dropout=0.25)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape))
    network.save_pretrained(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "config.json").read_text()) == network.config
    found = Network.from_pretrained(tmp_path)
    assert found.config == network.config
    assert not found.training
    torch.testing.assert_close(found.state_dict(), network.state_dict(), rtol=0, atol=0)


def altered(folder, into, **files):
    """A copy of a saved network with other content of some files."""
    into.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    for name, content in files.items():
        (into / {"config": "config.json", "weights": "model.safetensors"}[name]).write_bytes(content)
    return into


def test_weights_of_another_network_name_the_keys_that_differ(saved, tmp_path):
    network, folder = saved
    state = dict(network.state_dict())
    state["head.1.bias"] = torch.zeros(5)
    state["teacher.weight"] = torch.zeros(2)
    del state["stem.0.weight"]
    changed = altered(folder, tmp_path / "a", weights=safetensors.save(state))
    differences = r"missing stem.0.weight; unexpected teacher.weight; wrong shape head.1.bias \(5,\) for \(3,\)$"
    with pytest.raises(ValueError, match=r"a/model.safetensors: weights must be those of ptv3, got " + differences):
        Network.from_pretrained(changed)
    other = altered(folder, tmp_path / "b", config=json.dumps({"name": "pointnet"}).encode())
    with pytest.raises(ValueError, match=r"must be those of pointnet, got missing .* and \d+ more; unexpected dec.0"):
        Network.from_pretrained(other)


JUNK = {
    "no JSON": ({"config": b"\x80\x02}"}, "config.json: expected JSON: "),
    "nested": ({"config": b"[" * 60000}, "config.json: expected JSON: "),
    "a list": ({"config": b"[]"}, "expected the name and options of a network of pointgrad, found others"),
    "no name": ({"config": b'{"hidden_size": 3}'}, "expected the name and options of a network of pointgrad"),
    "other name": ({"config": b'{"name": ["ptv3"]}'}, "expected the name and options of a network of pointgrad"),
    "nested option": ({"config": b'{"name": "ptv3", "norm": {"a": 1}}'}, "options must be numbers, texts or true and"),
    "unknown option": ({"config": b'{"name": "ptv3", "wide": 1}'}, "cannot build the network: options of ptv3 must"),
    "huge": ({"config": b'{"name": "ptv3", "classes": 1' + b"0" * 60 + b"}"}, "config.json: cannot build the network"),
    "NaN": ({"config": b'{"name": "ptv3", "width": NaN}'}, "width must be positive and finite, got nan"),
    "too long": ({"config": b" " * 70000}, "config.json: expected at most 65536 bytes, found more"),
    "empty weights": ({"weights": b""}, "model.safetensors: is not a file of safetensors, or is damaged: "),
    "pickle": ({"weights": b"PK\x03\x04" + bytes(1000)}, "model.safetensors: is not a file of safetensors, or is dam"),
    "header only": ({"weights": (2).to_bytes(8, "little") + b"{}"}, "weights must be those of ptv3, got missing "),
}


@pytest.mark.parametrize("title", JUNK)
def test_junk_gets_one_line(saved, title, tmp_path):
    files, message = JUNK[title]
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        Network.from_pretrained(altered(saved[1], tmp_path / "junk", **files))
    assert message in str(caught.value)


def test_truncated_weights_and_missing_files(saved, tmp_path):
    content = (saved[1] / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"model.safetensors: is not a file of safetensors, or is damaged: "):
        Network.from_pretrained(altered(saved[1], tmp_path / "a", weights=content[:-5]))
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"a/model.safetensors: no such file$"):
        Network.from_pretrained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"b/config.json: no such file$"):
        Network.from_pretrained(tmp_path / "b")
    with pytest.raises(ValueError, match=r"expected a folder with config.json and model.safetensors, or a repository"):
        Network.from_pretrained(tmp_path / "nowhere")


def test_a_changed_network_is_not_saved(tmp_path):
    network = models.sonata(**OPTIONS)
    network.head = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"the weights of sonata, got missing head.1.weight, head.1.bias$"):
        network.save_pretrained(tmp_path / "sonata")
    assert not (tmp_path / "sonata").exists()


def test_repositories(saved, monkeypatch):
    """With a package huggingface_hub that keeps files in memory."""
    stored, calls = {}, []

    class HfApi:
        def __init__(self, token=None):
            calls.append(("token", token))

        def create_repo(self, repo_id, *, private=None, exist_ok=False):
            calls.append(("create", repo_id, private, exist_ok))
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, revision=None, commit_message=None):
            stored[repo_id] = {file.name: file.read_bytes() for file in Path(folder_path).iterdir()}
            return SimpleNamespace(commit_url=f"https://hub/{repo_id}/{commit_message}")

    hub = ModuleType("huggingface_hub")
    hub.HfApi = HfApi

    def snapshot_download(repo_id, *, revision=None, token=None, allow_patterns=None):
        if repo_id not in stored:
            raise OSError("404 Client Error\nRepository not found")
        calls.append(("download", revision, token))
        folder = saved[1].parent / "cache"
        folder.mkdir(exist_ok=True)
        for name in allow_patterns:
            (folder / name).write_bytes(stored[repo_id][name])
        return str(folder)

    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    network = saved[0]
    assert network.push_to_hub("me/ptv3", private=True, token="t", message="First") == "https://hub/me/ptv3/First"
    found = Network.from_pretrained("me/ptv3", revision="v1", token="t")
    torch.testing.assert_close(found.state_dict(), network.state_dict(), rtol=0, atol=0)
    assert calls == [("token", "t"), ("create", "me/ptv3", True, True), ("download", "v1", "t")]
    with pytest.raises(ValueError, match=r"^me/other: cannot be downloaded: 404 Client Error Repository not found$"):
        Network.from_pretrained("me/other")


def test_without_the_packages(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match=r"^me/x: no such folder, and repositories need huggingface_hub: pip"):
        Network.from_pretrained("me/x")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModuleNotFoundError, match=r"^saved networks need safetensors: pip install safetensors$"):
        Network.from_pretrained(saved[1])
