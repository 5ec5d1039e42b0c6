from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sizes import IS_THOROUGH

from agentcache.errors import InputError
from agentcache.models import catalog
from agentcache.models.catalog import Model, check_model, check_servable, resolve_model
from agentcache.models.shapes import SHAPES, TINY, Shape

LLAMA_8B = "shape:llama-3.1-8b"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model `tiny`, made from nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCACHE_HOME", str(tmp_path_factory.mktemp("home")))
        return resolve_model("tiny")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of where a folder stands: what is in it does not matter there."""
    monkeypatch.setattr(catalog, "_write_config", lambda folder, shape: (folder / "config.json").write_text(str(shape)))


def read_folder(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(path).iterdir()}


def serve_arguments(model: Model) -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentcache.engine.vllm.compat import find_moved

    return find_moved("make_arg_parser")(FlexibleArgumentParser()).parse_args([model.path, *model.options])


def test_tiny_is_a_folder_that_loads(made: Model) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(made.path)
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(read_folder(made.path))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert len(tokenizer) == model.get_input_embeddings().num_embeddings == TINY.vocabulary
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.config.max_position_embeddings == tokenizer.model_max_length == TINY.max_tokens
    # The tool-call parser reads the tags in what is left of a reply without its control tokens.
    text = "Grüße,\n  tabs\tand 猫\n<tool_call>{}</tool_call>"
    assert tokenizer.decode(tokenizer.encode(f"{text}<|im_end|>"), skip_special_tokens=True) == text


def test_tinys_next_token_depends_on_the_first_block(made: Model) -> None:
    """Otherwise a wrong KV block would go unnoticed."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(made.path)
    prompts = torch.arange(1000, 1500).repeat(16, 1)
    prompts[:, :16] = torch.arange(16 * 16).reshape(16, 16)
    with torch.inference_mode():
        tokens = model(prompts).logits[:, -1].argmax(-1)
    assert len(set(tokens.tolist())) > 1


def test_tiny_comes_with_the_options_that_serve_needs(made: Model) -> None:
    args = serve_arguments(made)
    assert args.served_model_name == ["tiny"]
    assert (args.enable_auto_tool_choice, args.tool_call_parser) == (True, "hermes")
    assert (args.dtype, args.enforce_eager) == ("float32", True)
    assert args.kv_cache_memory_bytes == 2**30
    assert args.load_format == "auto"


def test_tiny_is_made_once(made: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(made.path)
    monkeypatch.setenv("AGENTCACHE_HOME", str(folder.parent))
    monkeypatch.setattr(catalog, "_write_config", lambda *_: pytest.fail("made again"))
    before = {file: file.stat().st_mtime_ns for file in (folder, *folder.iterdir())}
    assert resolve_model("tiny") == made
    assert {file: file.stat().st_mtime_ns for file in (folder, *folder.iterdir())} == before
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.engine
@pytest.mark.skipif(not IS_THOROUGH, reason="it loads transformers and PyTorch")
def test_tiny_has_the_same_bytes_in_every_process(made: Model, tmp_path: Path) -> None:
    # Another hash seed orders sets and dictionaries of strings in another way.
    environment = {**os.environ, "AGENTCACHE_HOME": str(tmp_path), "PYTHONHASHSEED": "1234"}
    code = "from agentcache.models.catalog import resolve_model; print(resolve_model('tiny').path)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    again = Path(run.stdout.strip())
    assert again.parent == tmp_path
    assert again.name == Path(made.path).name
    assert read_folder(str(again)) == read_folder(made.path)


def test_making_tiny_leaves_the_random_numbers_of_others_alone(home: Path) -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    home.mkdir()
    catalog._write_config(home, TINY)
    catalog._write_weights(home)
    assert torch.equal(torch.rand(4), expected)


def test_shape_has_the_real_geometry_and_no_weights(home: Path) -> None:
    model = resolve_model(LLAMA_8B)
    files = read_folder(model.path)
    assert Path(model.path).parent == home
    assert not [name for name in files if name.endswith((".safetensors", ".bin"))]
    config = json.loads(files["config.json"])
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    assert {name: config[name] for name in expected} == expected
    args = serve_arguments(model)
    assert (args.load_format, args.served_model_name, args.tool_call_parser) == ("dummy", [LLAMA_8B], "hermes")


def test_unknown_shape_is_answered_with_the_choices(home: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve_model("shape:llama-9")
    choices = ", ".join(f"shape:{name}" for name in SHAPES)
    assert choices.startswith("shape:llama-3.1-8b, shape:llama-3.1-70b, shape:qwen2.5-7b, ")
    assert str(caught.value) == f"model shape:llama-9: unknown shape; choose from {choices}"
    assert not home.exists()


def test_shape_whose_chats_need_its_tokenizer_is_not_served() -> None:
    check_model("shape:gpt-oss-20b")
    with pytest.raises(InputError, match=r"^model shape:gpt-oss-20b: .*can be simulated but not served; serve the"):
        check_servable("shape:gpt-oss-20b")
    check_servable("shape:gemma-3-12b")
    check_servable("openai/gpt-oss-20b")
    with pytest.raises(InputError, match="unknown shape"):
        check_servable("shape:llama-9")


def test_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^model {tmp_path}: the folder has no config.json; give the folder that"):
        resolve_model(str(tmp_path))


def test_any_other_model_is_vllms_own_affair(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == Model(str(tmp_path))
    assert resolve_model("Qwen/Qwen3-8B") == Model("Qwen/Qwen3-8B")


@pytest.mark.usefixtures("quick")
def test_models_stand_in_the_users_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTCACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Path(resolve_model(LLAMA_8B).path).parent == tmp_path / "xdg" / "agentcache" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert Path(resolve_model(LLAMA_8B).path).parent == tmp_path / "user" / ".cache" / "agentcache" / "models"


@pytest.mark.usefixtures("quick", "home")
def test_every_recipe_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {resolve_model(f"shape:{shape}").path for shape in SHAPES}
    monkeypatch.setattr(catalog, "_TOOLS", ())
    paths |= {resolve_model(f"shape:{shape}").path for shape in SHAPES}
    monkeypatch.setattr(platform, "python_version", lambda: "3.99")
    paths |= {resolve_model(f"shape:{shape}").path for shape in SHAPES}
    assert len(paths) == 3 * len(SHAPES)


@pytest.mark.usefixtures("quick")
def test_loser_of_a_race_takes_the_winners_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write: Callable[[Path, Shape], None] = catalog._write_config

    def write_behind_a_rival(folder: Path, shape: Shape) -> None:
        monkeypatch.setattr(catalog, "_write_config", write)
        (Path(resolve_model(LLAMA_8B).path) / "winner").touch()
        write(folder, shape)

    monkeypatch.setattr(catalog, "_write_config", write_behind_a_rival)
    model = resolve_model(LLAMA_8B)
    assert set(read_folder(model.path)) == {"config.json", "winner"}
    # No draft stays behind.
    assert list(home.iterdir()) == [Path(model.path)]


def test_failed_making_leaves_nothing_and_is_not_hidden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(folder: Path, shape: Shape) -> None:
        (folder / "config.json").write_text(str(shape))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(catalog, "_write_config", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        resolve_model(LLAMA_8B)
    assert list(home.iterdir()) == []


def test_a_home_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCACHE_HOME", "/proc/home")
    with pytest.raises(
        InputError, match=r"/proc/home cannot be written \(.*\); name another folder in AGENTCACHE_HOME"
    ):
        resolve_model("tiny")


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "../nowhere", "~/nowhere"])
def test_a_path_that_is_not_there_is_no_name_of_a_hub(name: str) -> None:
    with pytest.raises(InputError, match=f"^model {name}: there is no such folder; "):
        check_model(name)
