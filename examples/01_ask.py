"""Ask the embedded policy about a picture, look at its chain of evidence, and write the evidence page.

python examples/01_ask.py [PICTURE "QUESTION"]
"""

import sys
from importlib import resources

import pixelis

picture, question = sys.argv[1:3] if len(sys.argv) > 2 else (
    str(resources.files("pixelis").joinpath("demo/astronaut_sign.jpg")), "What does the sign say?"
)  # fmt: skip

with pixelis.load_policy("nano-rft") as policy:  # load once, ask often
    answer = policy.ask(picture, question)
    print(answer)
    for number, step in enumerate(answer.trace.steps, start=1):
        print(f"{number}. {step.call.tool} {step.call.args}\n   {step.result.text}")
    print("page:", answer.save("evidence.html"))

    vote = policy.ask(picture, question, samples=4)  # four trajectories vote; they may abstain
    print(vote if vote.answer is not None else f"cannot tell: {vote.reason}")
