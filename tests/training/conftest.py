"""A small corpus of the world, solved by the oracle with real tools, and the smallest nano that can read it."""

import pytest

from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.nano.nano_model import NANO_STYLE, NanoConfig, build_nano
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.training.dataset.prepared_examples import corpus_texts, prepare, tool_schemas
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig

TINY = {
    "hidden": 32,
    "layers": 5,
    "heads": 2,
    "head_dim": 16,
    "mlp": 64,
    "vision_hidden": 16,
    "vision_layers": 1,
    "vocabulary": 300,
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    config = CorpusConfig.model_validate(
        {
            "n": 12,
            "families": {"search": 1.0, "motion": 0.4},
            "difficulties": {1: 1.0},
            "splits": {"train": 0.75, "dev": 0.25},
            "toolbox": {"isolate": False, "seg": "classical", "cache": False},
        }
    )
    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    assert build(config, folder, workers=1).is_complete
    return Corpus(folder)


@pytest.fixture(scope="session")
def tokens(corpus):
    return PolicyTokenizer(train_tokenizer(corpus_texts(corpus), tool_schemas(), vocabulary=300))


@pytest.fixture(scope="session")
def examples_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="session")
def train(corpus, tokens, examples_folder):
    return prepare(
        corpus, "train", tokens, NANO_STYLE, ImageProcessorConfig(patch=8), workers=1, folder=examples_folder
    )


@pytest.fixture
def policy(tokens):
    return build_nano(NanoConfig(**TINY), tokens, seed=0)


@pytest.fixture
def settings(corpus, examples_folder):
    def make(**changes):
        given = {
            "corpus": str(corpus.folder),
            "examples_folder": str(examples_folder),
            "nano": TINY,
            "lr": 1e-2,
            "optimizer": "muon",
            "epochs": 3,
            "batch_tokens": 2048,
            "threads": 1,
            "workers": 1,
            "log_every": 1,
            "dynamics_epochs": 20,
            "min_cosine_std": 0.0,  # nine items and three epochs make no varied chains
        }
        return SftConfig.model_validate(given | changes)

    return make


@pytest.fixture
def rft_settings(corpus):
    """A short run of phase 2 from nano-sft, with some keys changed."""

    def make(**changes):
        given = {
            "policy": "nano-sft", "corpus": str(corpus.folder), "steps": 3, "prompts_per_step": 2, "group_size": 3,
            "keep_best": 3,
            "lr": 1e-4, "threads": 1, "limits": {"steps": 4, "turn_tokens": 96, "total_tokens": 600},
            "min_tool_calls": 0.0, "min_entropy_ratio": 0.0, "save_minutes": 0.0,
        }  # fmt: skip
        return RftConfig.model_validate(given | changes)

    return make
