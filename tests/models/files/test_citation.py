"""What a model card says to cite: papers that CITATION.cff names, as BibTeX."""

from __future__ import annotations

import re

import pytest
import yaml

from performer_string import ENCODINGS, FEATURE_MAPS, ModelDetails, ViT, ViTConfig, __version__
from performer_string.models.files import citation as cited
from performer_string.models.files.card import card
from tests.helpers.pages import REPOSITORY

CFF = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
REFERENCES = {each["title"]: each for each in CFF["references"]}
PAPERS = {paper for known in (cited.ENCODINGS, cited.FEATURE_MAPS) for papers in known.values() for paper in papers}
SMALL = {"variant": "micro", "image_size": 32, "patch_size": 8, "num_classes": 2}


def test_the_software_is_that_of_the_citation_file():
    text = cited.citation(ViTConfig(**SMALL))
    assert r"title = {{performer\_string: " in text  # an underscore alone is an error of LaTeX
    text = text.replace(r"\_", "_")
    assert (cited.TITLE, __version__) == (CFF["title"], CFF["version"])
    assert f"title = {{{{{CFF['title']}}}}}" in text
    assert f"author = {{{{{CFF['authors'][0]['name']}}}}}" in text


@pytest.mark.parametrize("paper", sorted(PAPERS), ids=lambda paper: paper.author)
def test_papers_are_those_of_the_citation_file(paper):
    reference = REFERENCES[paper.title]
    assert re.match(r"[\w-]+", reference["authors"][0]["name"])[0] == paper.author
    assert reference["authors"][0]["name"] == paper.author or not paper.alone
    if paper.where[:4].isdecimal():
        assert reference["url"] == f"https://arxiv.org/abs/{paper.where}"
        assert paper.year == 2000 + int(paper.where[:2])


def test_every_part_has_its_papers():
    assert list(cited.ENCODINGS) == list(ENCODINGS)
    assert list(cited.FEATURE_MAPS) == list(FEATURE_MAPS)
    assert [name for name, papers in cited.ENCODINGS.items() if not papers] == ["none"]


@pytest.mark.parametrize(
    ("fields", "authors"),
    [
        ({"encoding": "circulant-string", "feature_map": "favor+"}, ["Schenck", "Choromanski"]),
        ({"encoding": "rope", "feature_map": "elu"}, ["Su", "Heo", "Katharopoulos"]),
        ({"encoding": "none", "feature_map": "arc-cosine"}, ["Cho", "Choromanski"]),
        ({"encoding": "pate-so2", "attention": "softmax"}, ["Ji"]),
        ({"encoding": "liere", "attention": ["linear", "softmax"], "depth": 2}, ["Ostmeier", "Choromanski"]),
    ],
)
def test_a_card_cites_the_parts_of_its_model(fields, authors):
    text = card(ViT(ViTConfig(**{**SMALL, **fields})), ModelDetails())
    (block,) = re.findall(r"```bibtex\n(.*?)```", text, re.DOTALL)
    entries = re.findall(r"^@(\w+)\{(\w+),\n((?:  \w+ = \{.*\},\n)+)\}$", block, re.MULTILINE)
    assert (
        "@".join(["", *(f"{kind}{{{key},\n{fields}}}\n\n" for kind, key, fields in entries)]).strip() == block.strip()
    )
    assert [
        re.search(r"author = \{+([\w ]+?)(?: and others)?\}", fields.replace("\\", ""))[1] for *_, fields in entries
    ] == [
        "The performer_string authors",
        *authors,
    ]
    assert len({key for _, key, _ in entries}) == len(entries)
