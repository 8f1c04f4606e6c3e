"""What to cite for a model, as BibTeX: the software, and the papers of its encoding and feature map."""

from __future__ import annotations

from typing import NamedTuple

from performer_string.models.config import ViTConfig

TITLE = "performer_string: linear-attention Vision Transformers with STRING position encodings"


class Paper(NamedTuple):
    """A paper, as in CITATION.cff.

    Attributes:
        author: last name of the first author.
        title: its title.
        year: year of its first version.
        where: number on arXiv, or the proceedings.
        alone: whether it has one author.
    """

    author: str
    title: str
    year: int
    where: str
    alone: bool = False

    def bibtex(self) -> str:
        """Return the entry of the paper; further authors are `others`, which LaTeX sets as et al."""
        arxiv = self.where[:4].isdecimal()
        fields = {
            "author": self.author if self.alone else f"{self.author} and others",
            "title": f"{{{self.title}}}",  # braces keep capital letters
            "year": str(self.year),
            **({"eprint": self.where, "archivePrefix": "arXiv"} if arxiv else {"booktitle": self.where}),
        }
        return entry("misc" if arxiv else "inproceedings", f"{self.author.lower()}{self.year}", fields)


STRING = Paper("Schenck", "Learning the RoPEs: Better 2D and 3D Position Encodings with STRING", 2025, "2502.02562")
RIEMANNFORMER = Paper("Ji", "RiemannFormer", 2025, "2506.07405", alone=True)
ROPE_VIT = Paper("Heo", "Rotary Position Embedding for Vision Transformer", 2024, "2403.13298")
PERFORMERS = Paper("Choromanski", "Rethinking Attention with Performers", 2020, "2009.14794")

ENCODINGS: dict[str, tuple[Paper, ...]] = {
    "none": (),
    "absolute": (
        Paper(
            "Dosovitskiy",
            "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
            2020,
            "2010.11929",
        ),
    ),
    "sinusoidal": (Paper("Vaswani", "Attention Is All You Need", 2017, "1706.03762"),),
    "rope": (
        Paper("Su", "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, "2104.09864"),
        ROPE_VIT,
    ),
    "rope-mixed": (ROPE_VIT,),
    "visionllama": (Paper("Chu", "VisionLLaMA: A Unified LLaMA Backbone for Vision Tasks", 2024, "2403.00522"),),
    "cayley-string": (STRING,),
    "circulant-string": (STRING,),
    "reflection-string": (STRING,),
    "pate-so2": (RIEMANNFORMER,),
    "pate-so3": (RIEMANNFORMER,),
    "pate-so4": (RIEMANNFORMER,),
    "liere": (Paper("Ostmeier", "LieRE: Lie Rotational Positional Encodings", 2024, "2406.10322"),),
}
FEATURE_MAPS: dict[str, tuple[Paper, ...]] = {
    "favor+": (PERFORMERS,),
    "favor+hyperbolic": (PERFORMERS,),
    "arc-cosine": (
        Paper("Cho", "Kernel Methods for Deep Learning", 2009, "Advances in Neural Information Processing Systems"),
        PERFORMERS,
    ),
    "polynomial": (
        Paper(
            "Arora",
            "Simple Linear Attention Language Models Balance the Recall-Throughput Tradeoff",
            2024,
            "2402.18668",
        ),
    ),
    "elu": (
        Paper(
            "Katharopoulos",
            "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
            2020,
            "2006.16236",
        ),
    ),
}


def entry(kind: str, key: str, fields: dict[str, str]) -> str:
    """Return an entry of BibTeX with a key and fields, whose underscores LaTeX would take for subscripts."""
    lines = (f"  {name} = {{{value}}},".replace("_", r"\_") for name, value in fields.items())
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


def papers_of(config: ViTConfig) -> list[Paper]:
    """Return the papers of a model's encoding and, where its attention has one, of its feature map.

    Parts of the user's own have none.
    """
    has_map = any(map(config.has_feature_map, config.kinds_of_attention()))
    maps = FEATURE_MAPS.get(config.feature_map, ()) if has_map else ()
    return list(dict.fromkeys([*ENCODINGS.get(config.encoding, ()), *maps]))


def citation(config: ViTConfig) -> str:
    """Return what to cite for a model, as entries of BibTeX."""
    from performer_string import __version__

    authors = "{The performer_string authors}"
    software = entry(
        "software", "performer_string", {"author": authors, "title": f"{{{TITLE}}}", "version": __version__}
    )
    return "\n\n".join([software, *(paper.bibtex() for paper in papers_of(config))])
