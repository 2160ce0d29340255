"""guidellm, a load tool that others wrote, completes a run against `loopwise serve`."""

import json
import os
import subprocess
import sys

import httpx
import pytest

pytest.importorskip("guidellm", reason="the optional package guidellm is absent")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_guidellm_completes_a_run(url, tmp_path):
    hf, out = tmp_path / "hf", tmp_path / "out.json"
    subprocess.run([sys.executable, "-m", "loopwise", "export", "tiny", "--format", "hf", "--out", str(hf)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={url},model=tiny:economy",
         "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=24",
         "--tokenizer", f"kind=huggingface_auto,model={hf}",
         "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=16",
         "--output", f"kind=json,path={out}", "--disable-progress"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    requests = json.loads(out.read_text())["benchmarks"][0]["requests"]
    assert len(requests["successful"]) == 24 and requests["errored"] == []
    assert httpx.get(url + "/load", trust_env=False).json()["server_load"] == 0
