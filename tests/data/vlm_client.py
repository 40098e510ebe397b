"""Teaches a few items through a server, for a test that kills it: address, folder of replies, file of seals."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pixelis.data.corpus.corpus_config import TeacherConfig
from pixelis.data.teachers.vlm import VlmTeacher
from pixelis.rollout.remote.chat_client import ServerConfig
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.world import generate

url, replies, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
server = ServerConfig(url=url, model="slow", concurrency=3, pause_s=0.01)
teacher = VlmTeacher(TeacherConfig(kind="vlm", server=server, image_side=64), replies=replies)
toolbox = Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False))


def seal(seed: int) -> str:
    rendered = generate("search", seed=seed, difficulty=1)
    return teacher.demonstrate(rendered, toolbox, rng=np.random.default_rng(seed)).trace.seal


with ThreadPoolExecutor(3) as pool:
    out.write_text(json.dumps(list(pool.map(seal, range(8)))))
teacher.close()
