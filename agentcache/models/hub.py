"""Asks the Hugging Face hub whether it has a model, before anything that asks for half a minute."""

from __future__ import annotations

import os
from pathlib import Path

from agentcache.errors import InputError, in_one_line

# One of them is what vLLM reads a model's configuration from.
_CONFIGS = ("config.json", "params.json")


def check_hub(name: str, *, revision: str | None = None, token: str | bool | None = None) -> None:
    """Raise InputError for a name that is no path here and that neither the hub nor its cache has.

    One question without a second try: transformers and vLLM ask for half a minute. Any other answer is theirs to judge.
    """
    if "://" in name or Path(name).exists() or os.environ.get("VLLM_USE_MODELSCOPE", "0").lower() in ("1", "true"):
        return
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    remedy = "give a folder that holds the model's files, or a name that the hub has"
    try:
        if any(try_to_load_from_cache(name, config, revision=revision) for config in _CONFIGS):
            return
        get_hf_file_metadata(hf_hub_url(name, _CONFIGS[0], revision=revision), token=token)
    except errors.HFValidationError as error:
        raise InputError(f"model {name}: there is no such folder; {remedy}") from error
    except errors.GatedRepoError as error:
        page = f"{constants.ENDPOINT}/{name}"
        raise InputError(f"model {name}: its owner grants access at {page}; then set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        missing = f"there is no such folder, and {constants.ENDPOINT} has no such model"
        raise InputError(f"model {name}: {missing}; {remedy}; for a private one set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"--revision {revision}: {constants.ENDPOINT}/{name} has none of that name") from error
    except errors.HfHubHTTPError:
        return
    # The former is that of the HTTP library, which is another one in other versions.
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:  # type: ignore[attr-defined]
        missing = "there is no such folder, and the hub's cache does not have it"
        raise InputError(
            f"model {name}: {missing}, nor does {constants.ENDPOINT} answer ({in_one_line(error)}); {remedy}"
        ) from error
