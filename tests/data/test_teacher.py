"""Plug-in teachers: found by module:factory, also with the method's name of earlier releases."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.teachers.teacher import make_teacher


class EarlierTeacher:
    def teach(self, rendered, toolbox, *, rng):
        return "a demonstration"

    def close(self):
        pass


@pytest.fixture
def config(monkeypatch):
    module = ModuleType("their_teachers")
    module.EarlierTeacher, module.NotATeacher = EarlierTeacher, object
    monkeypatch.setitem(sys.modules, "their_teachers", module)
    return lambda name: CorpusConfig.model_validate({"teacher": {"kind": "plugin", "plugin": f"their_teachers:{name}"}})


def test_a_plugin_teacher_may_still_call_its_method_teach(config, tmp_path):
    assert make_teacher(config("EarlierTeacher"), tmp_path).demonstrate(None, None, rng=None) == "a demonstration"


@pytest.mark.parametrize("name", ["NotATeacher", "Missing"])
def test_a_plugin_without_either_method_or_that_is_missing_is_a_config_error(config, tmp_path, name):
    with pytest.raises(ConfigError, match=f"their_teachers:{name}' cannot be loaded .*; want module:factory"):
        make_teacher(config(name), tmp_path)
