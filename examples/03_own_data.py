"""From your own questions to a corpus of checked traces: draw pictures, write questions, build, look.

python examples/03_own_data.py [FOLDER]
"""

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from pixelis import Corpus
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.importers import ImportOptions, find_or_import_items

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own_data")
pictures = folder / "pictures"
pictures.mkdir(parents=True, exist_ok=True)
font = ImageFont.load_default(34)
rows = []
for word, colour in (("OPEN", "red"), ("EXIT", "green"), ("MILL", "blue"), ("LAKE", "orange")):
    image = Image.new("RGB", (240, 160), "white")
    draw = ImageDraw.Draw(image)
    draw.text((26, 22), word, fill="black", font=font)
    draw.rectangle((144, 80, 215, 143), fill=colour)
    image.save(pictures / f"{word.lower()}.png")
    text = {"text": word, "box": [0.1, 0.1, 0.6, 0.4]}
    square = {"label": f"{colour} square", "box": [0.6, 0.5, 0.9, 0.9]}
    base = {"media": f"{word.lower()}.png"}
    rows.append(base | {"question": "What does the sign say?", "answer": word, "references": [text]})
    rows.append(base | {"question": f"How many {colour} squares are there?", "answer": 1, "references": [square]})
(folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")

items, imported = find_or_import_items(folder / "mine.jsonl", folder / "mine", ImportOptions(media=pictures))
config = CorpusConfig.model_validate({"items": [str(items)], "n": imported.count, "teacher": {"kind": "auto"}})
report = build(config, folder / "corpus")  # a stopped build is resumed by the same call
print(f"{report.records} records, {report.accepted} accepted, in {folder / 'corpus'}")
for record in list(Corpus(folder / "corpus"))[:2]:
    print(record.item.question, "->", record.trace.answer, "by", [step.call.tool for step in record.trace.steps])
