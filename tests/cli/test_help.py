"""The help of commands."""

import dataclasses

import pytest

from pointgrad.cli import main
from pointgrad.cli.bench import Bench
from pointgrad.cli.check import Check
from pointgrad.cli.convert import Convert
from pointgrad.cli.evaluate import Evaluate
from pointgrad.cli.graph import Graph
from pointgrad.cli.helptext import field_docs
from pointgrad.cli.info import Info
from pointgrad.cli.learning import PrepareFlags
from pointgrad.cli.models import Models
from pointgrad.cli.new_operator import NewOperator
from pointgrad.cli.predict import Predict
from pointgrad.cli.render import Render
from pointgrad.cli.train import Train
from pointgrad.cli.view import View

COMMANDS = (Bench, Check, Convert, Evaluate, Graph, Info, Models, NewOperator, Predict, Render, Train, View)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_help_of_flags_has_no_line_breaks_within_sentences(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main(["new-operator" if kind is NewOperator else kind.__name__.lower(), "--help"])
    shown = capsys.readouterr().out
    docs = {
        name: text for each in kind.__mro__ if dataclasses.is_dataclass(each) for name, text in field_docs(each).items()
    }
    if kind is Train:
        docs |= field_docs(PrepareFlags)
    assert len(docs) >= len(dataclasses.fields(kind)) - 2  # groups of flags have no text
    for name, text in docs.items():
        assert text in shown, name
