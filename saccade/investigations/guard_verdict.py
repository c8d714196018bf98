"""What a guard says of one prompt, and which heads and words made it say so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from saccade.lenses.head_reading import Word

LONGEST = 60  # characters of a prompt or of a stretch that are shown in a line


class HeadAlarm(NamedTuple):
    """One head's part in a score."""

    layer: int
    head: int
    share: float
    """Of the way from ordinary stretches to this one; all heads' shares sum to 1."""
    adds: tuple[Word, ...]
    """What its lens says more than in ordinary prompts: ``p log(p / usual)``, in nats."""

    @property
    def name(self) -> str:
        """Layer and number: 12.3 is head 3 of layer 12."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How ordinary a prompt is."""

    prompt: str
    score: float
    """The log odds that its worst stretch is a request put into a prompt, not part of one."""
    threshold: float
    rarity: float
    """Share of ordinary prompts that score as high."""
    stretch: str
    """The words of that stretch."""
    heads: tuple[HeadAlarm, ...] = ()
    """Those with the largest parts; only looked for where there is an alarm."""

    @property
    def is_alarm(self) -> bool:
        """Whether the prompt is reported."""
        return self.score > self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "prompt": self.prompt,
            "alarm": self.is_alarm,
            "score": round(self.score, 6),
            "threshold": round(self.threshold, 6),
            "rarity": round(self.rarity, 6),
            "stretch": self.stretch,
            "heads": [
                {
                    "layer": each.layer,
                    "head": each.head,
                    "share": round(each.share, 6),
                    "adds": [[word.text, round(word.value, 6)] for word in each.adds],
                }
                for each in self.heads
            ],
        }

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self) -> str:
        """A few lines to read."""
        word = "ALARM" if self.is_alarm else "ordinary"
        lines = [
            f"{word}  {self.score:.2f} (alarm above {self.threshold:.2f})  {_short(self.prompt)}"
        ]
        if self.is_alarm:
            lines.append(f"  at       {_short(self.stretch)}")
            for each in self.heads:
                words = " ".join(repr(word.text) for word in each.adds)
                lines.append(
                    f"  {each.name:<7}  {100 * each.share:4.1f} %  says more than usual {words}"
                )
        return "\n".join(lines)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."
