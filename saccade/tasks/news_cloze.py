"""The question files of CNN and the Daily Mail, as Hermann et al. made and DeepMind publish them.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 2: a news article is the document,
and one of the points that sum it up, with a name removed, the question. A file has an address, the
article, the question, the answer, and what each label stands for, with an empty line between any
two of them. Names are labels already; they are numbered anew, as they occur (Chen et al., 2016,
https://arxiv.org/abs/1606.02858, section 4.1).
"""

from __future__ import annotations

from pathlib import Path

from saccade.errors import TaskError
from saccade.tasks.cloze import GAP_WORD, LABEL_WORD, ClozeQuestion, make_question
from saccade.tasks.text_files import read_text

PARTS = ("training", "validation", "test")


def read_question_file(path: str | Path) -> ClozeQuestion:
    """The question of one ``.question`` file; its candidates are the names of the article."""
    path = Path(path)
    parts = read_text(path).rstrip("\n").split("\n\n", maxsplit=4)
    if len(parts) < 4:
        raise _refused(path, f"expected five parts with empty lines between, got {len(parts)}")
    document, question, answer = (part.split() for part in parts[1:4])
    if question.count(GAP_WORD) != 1:
        raise _refused(path, f"its question has {question.count(GAP_WORD)} gaps, expected one")
    if len(answer) != 1 or not answer[0].startswith(LABEL_WORD):
        raise _refused(path, f"its answer is {' '.join(answer)!r}, expected one {LABEL_WORD}")
    meant = dict(line.split(":", 1) for line in "".join(parts[4:]).split("\n") if ":" in line)
    labels = {word for word in (*document, *question, *answer) if word.startswith(LABEL_WORD)}
    made = make_question(document, question, names=sorted(labels), answer=answer[0])
    called = tuple(meant.get(name, name) for name in made.names)
    return made._replace(names=called, source=path.stem)


def read_news_cloze(folder: str | Path, part: str = "training") -> list[ClozeQuestion]:
    """All questions of a part of ``cnn/questions`` or ``dailymail/questions``."""
    folder = Path(folder)
    if part not in PARTS:
        raise TaskError(f"no part named {part!r}", hint=f"one of {', '.join(PARTS)}")
    files = sorted((folder / part).glob("*.question"))
    if not files:
        raise TaskError(
            f"{folder / part} has no .question files",
            hint="name the folder that holds training, validation and test",
        )
    return [read_question_file(path) for path in files]


def _refused(path: Path, why: str) -> TaskError:
    return TaskError(
        f"{path} is no question file: {why}",
        hint="an address, the article, the question, the answer and the names, an empty line apart",
    )
