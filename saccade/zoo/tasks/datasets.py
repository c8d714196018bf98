"""Finds data sets on this machine, and downloads the public ones, checked by their hash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saccade.errors import TaskError, UsageError, suggest
from saccade.store.atomic import cache_dir, data_dir

if TYPE_CHECKING:
    import torch

# The data sets that saccade knows: their content, source and licence.


class DataFile(NamedTuple):
    """One file, as published."""

    name: str
    url: str = ""
    """Empty where no public address is known."""
    hash: str = ""
    """Algorithm and digest, as `pooch` takes them."""
    n_bytes: int | None = None


class DataSet(NamedTuple):
    """The description of a data set."""

    name: str
    about: str
    licence: str
    source: str
    """The home page."""
    folder: str
    """The name of its folder."""
    files: tuple[DataFile, ...]

    @property
    def can_be_fetched(self) -> bool:
        """True if every file has a public address."""
        return all(file.url for file in self.files)

    @property
    def n_bytes(self) -> int | None:
        """The size of all files, where it is known."""
        sizes = [file.n_bytes for file in self.files]
        return sum(size or 0 for size in sizes) if all(sizes) else None


def _files(place: str, table: str) -> tuple[DataFile, ...]:
    """The files of a table: name, size in bytes and SHA-256 on each line."""
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(
        DataFile(name, place + name, f"sha256:{digest}", int(size)) for name, size, digest in rows
    )


MULTI30K = DataSet(
    name="multi30k",
    about="31,014 image descriptions in English, German and French, aligned by line",
    licence="non-commercial (the images are Flickr30k's)",
    source="https://github.com/multi30k/dataset",
    folder="multi30k",
    files=_files(
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/",
        """
train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.fr.gz 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.fr.gz 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.fr.gz 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
""",
    ),
)

MNIST = DataSet(
    name="mnist",
    about="60,000 and 10,000 handwritten digits of 28 x 28 pixels",
    licence="CC BY-SA 3.0, as usually cited",
    source="https://yann.lecun.com/exdb/mnist",
    folder="mnist",
    files=_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        """
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
""",
    ),
)

FRA_ENG = DataSet(
    name="fra-eng",
    about="167,130 English sentences with French translations, short ones first",
    licence="CC BY 2.0 (Tatoeba, by manythings.org/anki)",
    source="https://www.manythings.org/anki",
    folder="fra-eng",
    # The file at manythings.org changes with every new sentence. This is the copy of 2019-04 that
    # "Dive into Deep Learning" keeps; a SHA-1 is what it publishes.
    files=(
        DataFile(
            "fra-eng.zip",
            "https://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip",
            "sha1:94646ad1522d915e7b0f9296181140edcf86a4f5",
        ),
    ),
)

TINYSHAKESPEARE = DataSet(
    name="tinyshakespeare",
    about="1,115,394 characters of Shakespeare's plays",
    licence="public domain",
    source="https://github.com/karpathy/char-rnn",
    folder="tinyshakespeare",
    files=_files(
        "https://raw.githubusercontent.com/karpathy/char-rnn/"
        "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/",
        "input.txt 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
)

TREEBANK = DataSet(
    name="treebank",
    about="3,914 parsed sentences of the Wall Street Journal (NLTK's Penn Treebank sample)",
    licence="non-commercial",
    source="https://www.nltk.org/nltk_data",
    folder="treebank",
    files=_files(
        "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/",
        "treebank.zip 1740034 9da92d76c3666cfb6cddeaed0f7e86b344cce0f0928a286d439e555f19c37399",
    ),
)

WIKITEXT_2 = DataSet(
    name="wikitext-2",
    about="tokenised Wikipedia articles",
    licence="CC BY-SA",
    source="https://huggingface.co/datasets/Salesforce/wikitext",
    folder="wikitext-2",
    files=tuple(DataFile(f"{part}.txt.gz") for part in ("train", "valid", "test")),
)

GUTENBERG = DataSet(
    name="gutenberg",
    about="16 books of Project Gutenberg, 1.3 million words (Austen, Melville, Shakespeare, ...)",
    licence="public domain in the US",
    source="https://www.nltk.org/nltk_data",
    folder="gutenberg",
    # NLTK publishes them as one zip; here each book is one file.
    files=tuple(
        DataFile(f"{author}-{book}.txt.gz")
        for author, books in (
            ("austen", ("emma", "persuasion", "sense")),
            ("blake", ("poems",)),
            ("bryant", ("stories",)),
            ("carroll", ("alice",)),
            ("chesterton", ("ball", "brown", "thursday")),
            ("edgeworth", ("parents",)),
            ("melville", ("moby_dick",)),
            ("milton", ("paradise",)),
            ("shakespeare", ("caesar", "hamlet", "macbeth")),
            ("whitman", ("leaves",)),
        )
        for book in books
    ),
)

BABI = DataSet(
    name="babi",
    about="20 kinds of questions about short stories, 1,000 and 10,000 of each (bAbI v1.2)",
    licence="CC BY 3.0",
    source="https://research.fb.com/downloads/babi",
    folder="babi",
    # One archive, which has several names.
    files=tuple(
        DataFile(f"{name}.tar.gz")
        for name in ("babi-tasks-v1-2", "tasks_1-20_v1-2", "babi_tasks_1-20_v1-2")
    ),
)

FLICKR8K_1000 = DataSet(
    name="flickr8k-1000",
    about="1,000 of Flickr8k's photographs with 5 sentences each, and the sentences of all 8,091",
    licence="research only",
    source="https://hockenmaier.cs.illinois.edu/8k-pictures.html",
    folder="flickr8k-1000",
    files=tuple(
        DataFile(name) for name in ("captions.txt", "images.tar.gz", "all-captions.txt.gz")
    ),
)

FSDD = DataSet(
    name="fsdd",
    about="3,000 recordings of spoken digits, six speakers, 8 kHz (Free Spoken Digit Dataset)",
    licence="CC BY-SA 4.0",
    source="https://github.com/Jakobovski/free-spoken-digit-dataset",
    folder="free-spoken-digit-dataset",
    # The archive, or one file that identifies the folder of a git clone.
    files=tuple(
        DataFile(name) for name in ("free-spoken-digit-dataset.tar.gz", "recordings/0_george_0.wav")
    ),
)

UNIPEN_WORDS = DataSet(
    name="unipen-words",
    about="24,000 handwritten lower-case words as pen strokes, with their writers",
    licence="CC BY 4.0",
    source="https://www.unipen.org",
    folder="unipen-words",
    files=(DataFile("words.jsonl.gz"),),
)

DATA_SETS = {
    each.name: each
    for each in (
        *(MULTI30K, FRA_ENG, TINYSHAKESPEARE, GUTENBERG, TREEBANK, MNIST, WIKITEXT_2),
        BABI,
        FLICKR8K_1000,
        *(FSDD, UNIPEN_WORDS),
    )
}
"""By name, in the order in which they are listed."""


# Seconds to connect, and between two pieces of an answer: a missing network is reported at once.
_TIMEOUT = (5.0, 30.0)

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the files done, and how many there are."""


class Listed(NamedTuple):
    """A data set, and where it is on this machine."""

    data_set: DataSet
    where: Path | None


def known_data_set(name: str) -> DataSet:
    """The data set of a name."""
    if name in DATA_SETS:
        return DATA_SETS[name]
    raise UsageError(
        f"no data set named {name!r}",
        hint=suggest(name, DATA_SETS) or f"one of {', '.join(DATA_SETS)}",
    )


def list_data(data: str | Path | None = None) -> list[Listed]:
    """Every known data set, and where it was found."""
    return [Listed(each, _look(each, data)) for each in DATA_SETS.values()]


def find_data(name: str, data: str | Path | None = None) -> Path:
    """The folder with the files of a data set.

    Looked for in ``data`` (the user's ``--data``), then in ``$SACCADE_DATA``, then where
    `fetch_data` puts things; in each in the data set's own folder, then in the place itself.
    """
    data_set = known_data_set(name)
    found = _look(data_set, data)
    if found is None:
        looked = ", ".join(str(place) for place in _places(data))
        way = f"`saccade data fetch {name}`" if data_set.can_be_fetched else data_set.source
        raise TaskError(
            f"the data set {name} is not there: looked in {looked}",
            hint=f"{way}, or name the folder that holds it with --data or SACCADE_DATA",
        )
    return found


def fetch_data(name: str, *, progress: Progress | None = None) -> Path:
    """Fetch a data set into the cache, check it, and return its folder.

    Complete files in the cache are not fetched again.
    """
    data_set = known_data_set(name)
    if not data_set.can_be_fetched:
        raise TaskError(
            f"{name} cannot be fetched: it has no public address",
            hint=f"see {data_set.source}, and name the folder that holds it with --data",
        )
    folder = fetched_dir() / data_set.folder
    for done, file in enumerate(data_set.files):
        if progress:
            progress(f"fetching {file.name}", done, len(data_set.files))
        _fetch(file, folder)
    if progress:
        progress(f"fetched {name}", len(data_set.files), len(data_set.files))
    return folder


def fetched_dir() -> Path:
    """The folder of fetched data sets."""
    return cache_dir() / "data"


def _places(data: str | Path | None) -> list[Path]:
    chosen = Path(data).expanduser() if data is not None else None
    if chosen is not None and not chosen.is_dir():
        raise UsageError(f"no such folder: {chosen}", hint="check what --data names")
    return [place for place in (chosen, data_dir(), fetched_dir()) if place is not None]


def _look(data_set: DataSet, data: str | Path | None) -> Path | None:
    folders = [f for place in _places(data) for f in (place / data_set.folder, place)]
    return next((each for each in folders if _holds(each, data_set)), None)


def _holds(folder: Path, data_set: DataSet) -> bool:
    """One file is enough: nobody needs all languages. Reading a missing one raises an error."""
    names = [file.name for file in data_set.files]
    # Both the plain and the packed file are read.
    twins = [n.removesuffix(".gz") if n.endswith(".gz") else f"{n}.gz" for n in names]
    return any((folder / each).is_file() for each in (*names, *twins))


def _fetch(file: DataFile, folder: Path) -> None:
    # Importing it takes a third of a second, and few commands need it.
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # it logs every file; the caller reports progress
    host = file.url.split("/")[2]
    try:
        pooch.retrieve(
            url=file.url,
            known_hash=file.hash,
            fname=file.name,
            path=folder,
            # pooch names the parameters of its own class and its own protocol differently.
            downloader=pooch.HTTPDownloader(timeout=_TIMEOUT),  # pyright: ignore[reportArgumentType]
        )
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise TaskError(
            f"could not fetch {file.name}: {host} answered {status}",
            hint="try later, or name a folder that holds the file with --data",
        ) from error
    except requests.RequestException as error:
        raise TaskError(
            f"could not fetch {file.name}: {host} cannot be reached ({type(error).__name__})",
            hint="check the network, or name a folder that holds the file with --data",
        ) from error
    except ValueError as error:  # pooch's error for a wrong hash; the file is removed
        raise TaskError(
            f"could not fetch {file.name}: what {host} gave is not the file that was expected "
            f"({file.hash[:23]}...)",
            hint="try again; if it fails again, the published file has changed",
        ) from error
    except OSError as error:
        raise TaskError(
            f"could not write {folder / file.name}: {error.strerror or error}",
            hint="free some space, or choose another folder with SACCADE_CACHE",
        ) from error


# Random draws of a task depend only on a seed and a step.

# torch's generator on the CPU takes the lower 32 bits of a seed and drops the others, so both must
# fit into them. Multiples of 2^32 over the golden ratio lie far apart, which keeps the steps of one
# seed clear of those of another.
_SPREAD = 2_654_435_769


def generator_of(seed: int, step: int) -> torch.Generator:
    """The random generator of one step of one seed.

    It does not depend on earlier draws, so a training that is resumed, or split among processes,
    sees the same data.

    >>> import torch
    >>> draws = [torch.rand((), generator=generator_of(3, 5)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    import torch  # listing data sets does not need it

    return torch.Generator().manual_seed((seed * _SPREAD + step) % 2**32)
