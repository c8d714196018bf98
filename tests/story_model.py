"""A small language model for tests that need a trained one; every clone can train it.

A grammar with a fixed seed generates short stories, a BPE tokenizer of 512 tokens is trained on
them, and then a Llama of 256 thousand weights (5 layers, 8 heads, 4 key-value heads) is trained on
the stories, in less than a minute on one core. It is stored in the user's cache under a name with
a hash of this file, so that other test workers and later runs find it there.

Weights differ between machines: sums are ordered differently, and training amplifies that. Tests
rely on what the model has learnt, not on its weights.

saccade and torch are imported only inside functions: the shape checker must be installed first.
"""

from __future__ import annotations

import hashlib
import json
import random
import string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

BOS = 1
N_TOKENS = 512
N_STORIES = 6000

# Rows and their length: short rows train fastest, long rows teach long-range attention.
_SHORT, _LONG = (16, 64), (5, 192)
_STEPS, _WARM_UP, _RATE = 600, 30, 4e-3

# A word that occurs more often becomes one token.
_GIRLS = ("Lily", "Lily", "Lily", "Mia", "Sue", "Zoe", "Lucy", "Amy")
_BOYS = ("Tom", "Tom", "Tom", "Ben", "Tim", "Max", "Sam", "Leo")
_ANIMALS = ("cat", "dog", "bird", "frog", "bear", "fox", "rabbit", "mouse")
_THINGS = (
    *("ball", "cake", "car", "doll", "book", "hat", "boat", "box", "flower", "kite", "tree"),
    *("drum", "star", "key"),
)
_PLACES = ("park", "garden", "house", "forest", "beach", "store", "school", "farm")
_KINDS = (
    *("little", "little", "little", "big", "red", "blue", "tall", "new", "shiny", "funny"),
    *("soft", "green", "sad", "happy", "lost"),
)
_DID = (
    *("saw", "found", "liked", "wanted", "loved", "looked for", "took", "made", "played with"),
    *("ran to", "helped", "lost"),
)
_SYLLABLES = ("ka", "zo", "mi", "ru", "pe", "lo", "ti", "du", "ne", "vi", "so", "ga")

# Words for the main character besides the name.
_GIRL = {"she": "she", "her": "her", "to_her": "her", "kind": "girl", "parent": "mom"}
_BOY = {"she": "he", "her": "his", "to_her": "him", "kind": "boy", "parent": "dad"}

_BEGINNINGS = (
    "Once upon a time, there was a {adj} {kind} named {name}. {She} had a {adj2} {thing}.",
    "Once upon a time, there was a little {kind} named {name}. {She} loved to play in the {place}.",
    "Once upon a time there was a {adj} {animal} named {name}. {name} lived in the {place}.",
    "One day, {name} saw a {adj} {adj2} {thing}. {She} played with the {thing} in the {place}.",
    "One day, a {kind} went to the {place} with {her} {parent}.",
    "One day, {name} {did} the {thing}. {She} was very happy.",
    "One day the {parent} said that {she} had a {adj} {thing} for {name}.",
    "{name} went to the {place} and {she} saw a {animal}. The {animal} was {adj}.",
    "The {ruler} was happy. Then {she} {did} a {thing} in the {place}.",
    "The {kind} saw a {animal}, and {she} named the {animal} {name}.",
)
_MIDDLES = (
    "{name} was sad because {she} could not find the {thing}.",
    '"Where is my {thing}?" said {name}. "It is in the {place}," said {her} {parent}.',
    "Then {name} went home with the {thing}.",
    "{She} looked for the {animal} in the {place}, but the {animal} was not there.",
    "{She} asked {her} {parent} for a {thing}. {Her} {parent} gave {to_her} a {adj} {thing}.",
    "{name} and {friend} played with the {thing}. Then {friend} gave the {thing} to {name}.",
    "{friend} said that {name} was a {adj} {kind}. {name} said that {friend} was {adj2}.",
    '{name} said, "{song}." {friend} said, "{song}."',
    'The {animal} was called {odd}. "Come here, {odd}," said {name}. {odd} was very happy.',
)
_ENDINGS = (
    "They all went home and were very happy.",
    "{name} and {friend} were best friends.",
    "{She} gave the {thing} to {her} {parent}, and {her} {parent} was happy.",
    "Then {name} was not sad anymore. The end.",
)


def story(chance: random.Random) -> str:
    """A few sentences about a character, a friend, an animal, a thing and a place, with repeats."""
    girl, boy = chance.choice(_GIRLS), chance.choice(_BOYS)
    is_girl = chance.random() < 0.5
    adj, adj2 = chance.sample(_KINDS, 2)
    slots = {
        **(_GIRL if is_girl else _BOY),
        **({"She": "She", "Her": "Her"} if is_girl else {"She": "He", "Her": "His"}),
        "ruler": "queen" if is_girl else "king",
        "name": girl if is_girl else boy,
        "friend": boy if is_girl else girl,
        "animal": chance.choice(_ANIMALS),
        "adj": adj,
        "adj2": adj2,
        "thing": chance.choice(_THINGS),
        "place": chance.choice(_PLACES),
        # Random words cannot be memorised: to repeat them, the model has to attend to them.
        "odd": "".join(chance.choices(_SYLLABLES, k=3)).capitalize(),
        "song": " ".join(chance.choices(_SYLLABLES, k=5)),
    }
    middles = chance.sample(_MIDDLES, chance.randint(0, 2))
    middles += [_any_sentence(chance) for _ in range(chance.randint(2, 4))]
    chance.shuffle(middles)
    shapes = [chance.choice(_BEGINNINGS), *middles, chance.choice(_ENDINGS)]
    return " ".join(shape.format(**slots, did=chance.choice(_DID)) for shape in shapes)


def _any_sentence(chance: random.Random) -> str:
    """One of millions of sentences, so that the next token is seldom certain."""
    kind, other = chance.choice(_KINDS), chance.choice(_KINDS)
    thing = chance.choice((*_THINGS, *_ANIMALS))
    who = ("{name}", "{friend}", "{She}", "The {animal}", f"A {kind} {{kind}}", f"The {thing}")
    what = ("the {thing}", f"a {chance.choice(_ANIMALS)}", f"the {other} {thing}", "{friend}")
    where = ("", "", " in the {place}", f" near the {chance.choice(_PLACES)}")
    end = (
        ".",
        ".",
        "!",
        ", and {she} was happy.",
        f", but it was {kind}.",
        " with {her} {parent}.",
    )
    parts = (chance.choice(each) for each in (who, _DID, what, where, end))
    return "{} {} {}{}{}".format(*parts)


def stories(n: int, *, seed: int = 0) -> list[str]:
    """``n`` stories, the same for the same seed."""
    chance = random.Random(seed)
    return [story(chance) for _ in range(n)]


def train_tokenizer(text: list[str]) -> Tokenizer:
    """BPE with a leading space in words, a token for each byte, and BOS in front."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=N_TOKENS,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=["\u2581", *string.ascii_letters, *string.digits, *".,!?:;-'\"()"],
        show_progress=False,
    )
    learnt.train_from_iterator(text, trainer)
    model = json.loads(learnt.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


def train_model(tokenizer: Tokenizer, text: list[str]) -> LlamaForCausalLM:
    """A small Llama, trained for about one epoch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=N_TOKENS,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    ids = torch.tensor([each for row in tokenizer.encode_batch(text) for each in row.ids])
    adam = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98), fused=True)
    chance = torch.Generator().manual_seed(0)
    for step in range(_STEPS):
        rows, window = _SHORT if step < 0.8 * _STEPS else _LONG
        start = torch.randint(len(ids) - window, (rows, 1), generator=chance)
        some = ids[start + torch.arange(window)]
        for group in adam.param_groups:
            group["lr"] = _RATE * min((step + 1) / _WARM_UP, 1, 1.2 * (1 - step / _STEPS))
        model(input_ids=some, labels=some, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
    return model.eval()


def story_model(cache: Path) -> Path:
    """The folder with the model in this cache; trains the model if it is missing."""
    from saccade.store.atomic import atomic_folder, writing_alone

    about = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"story-model-{about}"
    if not folder.is_dir():
        with writing_alone(folder):
            if not folder.is_dir():  # another test worker may have been faster
                with atomic_folder(folder) as temporary:
                    _write(temporary)
    return folder


def _write(folder: Path) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast

    text = stories(N_STORIES)
    tokenizer = train_tokenizer(text)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    try:
        train_model(tokenizer, text).save_pretrained(folder)
    finally:
        torch.set_num_threads(threads)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    ).save_pretrained(folder)
