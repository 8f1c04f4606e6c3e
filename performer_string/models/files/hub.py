"""The Hugging Face Hub: files of a model by its name, and errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from performer_string.models.files.paths import CONFIG, WEIGHTS
from performer_string.models.files.published import read_config
from performer_string.models.files.weights import INSTALL, PublishedError
from performer_string.utils.files import nearest_path
from performer_string.utils.registry import nearest

REPOSITORY_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # on the Hub
COMMIT = re.compile(r"[0-9a-f]{40}")
OPTIONS = ("revision", "token", "local_files_only", "cache_dir", "force_download")
OTHER_WAYS = {
    "num_classes": "change it afterwards by model.head = torch.nn.Linear(model.config.width, N) and "
    "model.config.num_classes = N",
    **dict.fromkeys(("dtype", "torch_dtype"), "change it afterwards by model.to(dtype)"),
    **dict.fromkeys(("device", "device_map"), "change it afterwards by model.to(device)"),
    **dict.fromkeys(("image_size", "img_size"), "call it with images of any size, in multiples of its patches"),
}


def hub() -> Any:
    """Return the package of the Hub, or raise an ImportError that says how to install it."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(f"this needs huggingface_hub: {INSTALL}") from error
    return huggingface_hub


def check_download_options(options: Iterable[str]) -> None:
    """Raise a TypeError for an option that a download does not have, with what to do in its place."""
    for name in options:
        if name in OTHER_WAYS:
            raise TypeError(f"from_pretrained loads a model as it was saved, without {name!r}: {OTHER_WAYS[name]}.")
        if name not in OPTIONS:
            raise TypeError(
                f"from_pretrained has no option {name!r}.{nearest(name, OPTIONS)} Its options are those of a download: "
                f"{', '.join(OPTIONS)}. Sizes and parts are those of the saved model."
            )


def download(name: str, **options: Any) -> Path:
    """Return the folder that a model of the Hub was downloaded to: its configuration and weights alone.

    The configuration comes first, so that the weights of a model of another program are not downloaded. Both are of one
    commit. What was downloaded before is read from the cache of huggingface_hub where the Hub cannot be reached.

    Args:
        name: name of the model, `owner/name`.
        options: options of `huggingface_hub.hf_hub_download`, such as `revision`, `token` and `local_files_only`.

    Raises:
        PublishedError: a model of another program.
    """
    get = hub().hf_hub_download
    folder = Path(get(name, CONFIG, **options)).parent
    read_config(folder)
    commit = {"revision": folder.name} if COMMIT.fullmatch(folder.name) else {}
    get(name, WEIGHTS, **{**options, **commit})
    return folder


@contextmanager
def explain_download(name: str, options: dict[str, Any]) -> Iterator[None]:
    """Turn the errors of a download into a PublishedError that says what to do.

    Raises:
        PublishedError: no such model, no network, or a model of another program.
    """
    if "/" not in name:
        raise PublishedError(
            f"there is no folder {name}, and a model on the Hub is named OWNER/NAME.{nearest_path(Path(name))}"
        )
    try:
        yield
    except PublishedError as error:
        raise PublishedError(f"the model {name} of the Hub cannot be used: {error}") from error
    except Exception as error:  # an error of the Hub, the network or the file system
        raise PublishedError(
            f"there is no folder {name}, and {reason(name, error, options)}{nearest_path(Path(name))}"
        ) from error


def reason(name: str, error: Exception, options: dict[str, Any]) -> str:
    """Return why a model of the Hub could not be downloaded, and what to do."""
    kinds, address = hub().errors, f"https://huggingface.co/{name}"
    if isinstance(error, kinds.GatedRepoError):
        return f"{name} on the Hub asks you to accept its terms: do so at {address}, and log in by `hf auth login`."
    if isinstance(error, kinds.RepositoryNotFoundError):
        return f"no model {name} on the Hub: check its spelling. For a private one log in by `hf auth login`."
    if isinstance(error, kinds.RevisionNotFoundError):
        return f"the model {name} of the Hub has no revision {options.get('revision')!r}: {address}/commits has them."
    if isinstance(error, kinds.LocalEntryNotFoundError | kinds.OfflineModeIsEnabled):  # also without a connection
        return (
            f"the model {name} of the Hub is not in the cache, and the Hub was not reached: go online, or unset "
            f"HF_HUB_OFFLINE and local_files_only, or copy the model's folder here and give its path."
        )
    if isinstance(error, kinds.EntryNotFoundError):
        return f"{name} on the Hub is no model of performer_string: it lacks {CONFIG} or {WEIGHTS}."
    return f"the model {name} could not be downloaded from the Hub: {in_short(error)}"


def in_short(error: Exception) -> str:
    """Return the kind of an error and the beginning of its text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextmanager
def explain_upload(name: str) -> Iterator[None]:
    """Turn the errors of an upload into a PublishedError that says what to do.

    Raises:
        PublishedError: a name that is not `owner/name`, no network, or no right to write there.
    """
    check_repository(name)
    try:
        yield
    except Exception as error:  # an error of the Hub, the network or the file system
        raise PublishedError(f"the model was not uploaded to {name}: {refusal(error)}") from error


def check_repository(name: str) -> None:
    """Raise a PublishedError for a name that is not `owner/name`, and an ImportError without huggingface_hub."""
    hub()
    if "/" not in name or not REPOSITORY_NAME.fullmatch(name):
        raise PublishedError(f"a model on the Hub is named OWNER/NAME, of letters, digits and . - _, not {name!r}.")


def refusal(error: Exception) -> str:
    """Return why a model could not be uploaded, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or isinstance(error, hub().errors.LocalTokenNotFoundError):
        todo = "log in by `hf auth login` with a token that may write there."
    elif isinstance(error, hub().errors.OfflineModeIsEnabled):
        todo = "unset HF_HUB_OFFLINE."
    elif status is None:
        todo = "was the Hub reached? Go online, and look at HF_ENDPOINT and your proxy if they are set."
    else:
        todo = "see https://status.huggingface.co, or try again later."
    return f"{todo} ({in_short(error)})"
