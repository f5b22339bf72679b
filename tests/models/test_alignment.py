"""Tokens of two tokenizers, matched by the bytes they write; template text apart from contents; layers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentflow.errors import AdapterError
from agentflow.kv.payload import Turn
from agentflow.models.alignment import align, align_layers, spans_of, token_bytes
from agentflow.models.chat import render
from tests.tiny import tiny_tokenizer

OTHER_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}[system] be kind [/system]{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }} [/{{ m['role'] }}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TURNS = (
    Turn("system", "be brief"),
    Turn("user", "Zoë's café 😀😀 is system user\n\nin 東京 tower "),
    Turn("assistant", "ok"),
)


@cache
def word_tokenizer():
    """A SentencePiece-like tokenizer with byte fallback and another template: nothing in common with the tiny one."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split("[", "isolated")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256))],
        initial_alphabet=[*"abcdefghijklmnopqrstuvwxyz▁[]/."],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["[user] the tower is brief [/user] [system] café tower ok [/system]"] * 8, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")
    fast.chat_template = OTHER_TEMPLATE
    return fast


def aligned(receiver, sender, turns, *, reply=False):
    ours, theirs = (render(t, turns, reply=reply) for t in (receiver, sender))
    spans = spans_of(receiver, ours, turns), spans_of(sender, theirs, turns)
    return ours, theirs, *spans, align(*spans)


def contents(tokenizer, ids, spans, turn):
    pieces = token_bytes(tokenizer, ids)
    return b"".join(p for p, s in zip(pieces, spans[:, 0].tolist(), strict=True) if s == 2 * turn + 1)


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), word_tokenizer()], ids=["byte-level", "byte-fallback"])
def test_tokens_write_the_bytes_of_the_rendering(tokenizer):
    ids = render(tokenizer, TURNS, reply=False)
    assert b"".join(token_bytes(tokenizer, ids)).decode() == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), word_tokenizer()], ids=["byte-level", "byte-fallback"])
def test_sections_are_the_contents_and_the_template_between_them(tokenizer):
    ids = render(tokenizer, TURNS, reply=False)
    spans = spans_of(tokenizer, ids, TURNS)
    for n, turn in enumerate(TURNS):
        found = contents(tokenizer, ids, spans, n).decode().strip()
        assert found == turn.content.strip()
    assert set(spans[:, 0].tolist()) == set(range(7))


def test_the_same_tokenizer_is_aligned_one_to_one():
    tokenizer = tiny_tokenizer()
    *_, partners = aligned(tokenizer, tokenizer, TURNS)
    assert partners.tolist() == list(range(len(partners)))


@pytest.mark.parametrize("swapped", [False, True])
def test_partners_share_bytes_and_no_other_token_shares_more(swapped):
    pair = (word_tokenizer(), tiny_tokenizer()) if swapped else (tiny_tokenizer(), word_tokenizer())
    _, _, mine, theirs, partners = aligned(*pair, TURNS)

    def shared(a, b):
        return min(a[2], b[2]) - max(a[1], b[1]) if a[0] == b[0] else 0

    for place, partner in enumerate(partners.tolist()):
        if int(mine[place, 0]) % 2:
            row = mine[place].tolist()
            best = max(shared(row, other) for other in theirs.tolist())
            # A space that one template strips stands alone.
            assert (shared(row, theirs[partner].tolist()) == best) if partner >= 0 else best <= 0
    in_contents = partners[mine[:, 0] % 2 == 1]
    assert int((in_contents < 0).sum()) <= 1


def test_white_space_that_one_template_strips_shifts_nothing():
    turns = (Turn("user", "  the tower\n"),)
    ours, theirs, mine, _, partners = aligned(tiny_tokenizer(), word_tokenizer(), turns)
    pieces = token_bytes(tiny_tokenizer(), ours), token_bytes(word_tokenizer(), theirs)
    for place, section in enumerate(mine[:, 0].tolist()):
        if section == 1 and pieces[0][place] == b"t":
            assert b"t" in pieces[1][int(partners[place])]
    assert contents(tiny_tokenizer(), ours, mine, 0) == b"  the tower\n"


def test_characters_that_straddle_tokens_are_matched_by_their_bytes():
    ours, theirs, mine, others, partners = aligned(tiny_tokenizer(), word_tokenizer(), (Turn("user", "a😀東b"),))
    pieces = token_bytes(tiny_tokenizer(), ours), token_bytes(word_tokenizer(), theirs)
    smile = [n for n, s in enumerate(mine.tolist()) if s[0] == 1 and 1 <= s[1] < 5]
    assert len(smile) == 4  # one byte each, in both
    for place in smile:
        partner = int(partners[place])
        assert pieces[0][place] == pieces[1][partner]
        assert mine[place].tolist() == others[partner].tolist()


def test_template_text_has_no_partner_in_contents():
    _, _, mine, theirs, partners = aligned(tiny_tokenizer(), word_tokenizer(), TURNS)
    for place, partner in enumerate(partners.tolist()):
        if partner >= 0:
            assert int(mine[place, 0]) == int(theirs[partner, 0])


def test_contents_that_look_like_the_template_are_told_from_it():
    tokenizer, turns = tiny_tokenizer(), (Turn("user", "user"), Turn("assistant", "assistant\n"))
    ids = render(tokenizer, turns, reply=False)
    spans = spans_of(tokenizer, ids, turns)
    assert contents(tokenizer, ids, spans, 0) == b"user"
    assert contents(tokenizer, ids, spans, 1) == b"assistant\n"
    assert int(spans[0, 0]) == 0


def test_a_sender_that_stopped_early_leaves_the_rest_without_partners():
    tokenizer = tiny_tokenizer()
    ids = render(tokenizer, TURNS, reply=False)
    whole, cut = spans_of(tokenizer, ids, TURNS), spans_of(tokenizer, ids[:-9], TURNS)
    partners = align(whole, cut).tolist()
    content = [n for n in range(len(ids) - 9, len(ids)) if int(whole[n, 0]) % 2]
    assert partners[:20] == list(range(20))
    assert all(partners[n] == -1 for n in content)


def test_tokens_that_no_tokenizer_would_give_are_placed_as_well():
    """A model may spell its answer otherwise than the tokenizer does."""
    tokenizer, turns = tiny_tokenizer(), (Turn("user", "hi"), Turn("assistant", "the code"))
    spelt = [i for letter in "the code" for i in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    ids = [*render(tokenizer, turns[:1], reply=True), *spelt]
    spans = spans_of(tokenizer, ids, turns)
    assert spans[-8:, 0].tolist() == [3] * 8
    assert spans[-8:, 1].tolist() == list(range(8))


def test_without_a_template_and_with_a_mark_of_the_beginning():
    plain = word_tokenizer().__class__(tokenizer_object=word_tokenizer().backend_tokenizer, unk_token="<unk>")
    turns = (Turn("user", "the tower"), Turn("assistant", "is ok"))
    start = word_tokenizer().convert_tokens_to_ids("<s>")
    ids = [start, *render(plain, turns, reply=False)]
    spans = spans_of(plain, ids, turns)
    assert contents(plain, ids, spans, 0) == b"the tower"
    assert contents(plain, ids, spans, 1) == b"is ok"
    assert spans[0].tolist()[0] == 0


def test_layers_are_joined_from_the_end_or_by_depth_or_as_told():
    assert align_layers(24, 28, "terminal") == (0, 0, 0, 0, *range(24))
    assert align_layers(30, 26, "terminal") == tuple(range(4, 30))
    assert align_layers(30, 4, "depth") == (0, 10, 19, 29)
    assert align_layers(4, 30, "depth")[:1] + align_layers(4, 30, "depth")[-1:] == (0, 3)
    assert align_layers(5, 1, "depth") == (0,)
    assert align_layers(3, 2, (2, 0)) == (2, 0)
    with pytest.raises(AdapterError, match="don't join 2 to layers 0 to 2"):
        align_layers(3, 2, (0, 3))


def test_no_tokens_give_no_spans():
    assert spans_of(tiny_tokenizer(), [], TURNS).shape == (0, 3)
    assert align(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64)).shape == (0,)
