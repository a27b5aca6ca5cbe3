"""The container file."""

import json
import os
import re
import shutil

import pytest

import harness
import provide
from installing import PACKAGING, run

pytestmark = pytest.mark.duramen

FILE = PACKAGING / "container/Containerfile"


def instructions():
    """[(instruction, its text)] of the last stage."""
    text = FILE.read_text().split("\nFROM ")[-1]
    return re.findall(r"(?m)^([A-Z]+) (.*)$", text)


def test_hadolint_finds_nothing():
    assert run(provide.optional(provide.linters) / "bin/hadolint", FILE) == ""


def test_the_image_runs_without_rights():
    found = dict(instructions())
    assert int(found["USER"].split(":")[0]) > 0
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")


def test_the_commands_of_the_image_work(start, tmp_path):
    """The health check is a command of the program itself; the settings are accepted."""
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["/usr/bin/duramen"]
    assert json.loads(found["CMD"]) == ["serve", "--config", "/etc/duramen/duramen.toml"]
    run(harness.BINARY, "config", "check", PACKAGING / "container/duramen.toml", env=harness.environment({}))
    program, *words = json.loads(re.search(r"CMD (\[.*\])", found["HEALTHCHECK"])[1])
    assert program == "duramen"
    server = start()
    check = lambda: run(harness.BINARY, *words, env=harness.environment({"DURAMEN_PORT": str(server.port)}))  # noqa: E731
    check()
    server.kill()
    with pytest.raises(AssertionError, match="exit code 4"):
        check()


def test_everything_that_is_copied_is_there():
    root = PACKAGING.parent
    for name, text in instructions():
        if name == "COPY" and "--from" not in text:
            assert (root / text.split()[0]).exists(), text


def copy_libraries(program, root):
    for path in re.findall(r"/\S+", run("ldd", program)):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])


class Builder:
    """buildah, with images of its own."""

    def __init__(self, folder):
        self.places = ("--root", folder / "images", "--runroot", folder / "running")
        self.environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def run(self, *words):
        return run("buildah", *self.places, *words, env=self.environment)

    def base(self, name, folder):
        """An image with the files of a folder."""
        container = self.run("from", "scratch").strip()
        self.run("copy", "--quiet", container, folder, "/")
        self.run("config", "--env", "PATH=/bin:/usr/bin", container)
        self.run("commit", "--quiet", container, f"docker.io/library/{name}")


@pytest.mark.full
def test_the_image_is_built(tmp_path):
    """By a real builder. No image can be downloaded in a test: the images that the file begins with
    are made of this machine's files, and the one of the compiler has the built program."""
    if os.getuid() != 0:
        pytest.skip("only root builds images")
    provide.optional(provide.program, "buildah")
    root, context = tmp_path / "root", tmp_path / "context"
    (root / "bin").mkdir(parents=True)
    for name in ("sh", "mkdir", "chown", "cp"):
        copy_libraries(f"/bin/{name}", root)
        shutil.copy(f"/bin/{name}", root / "bin")
    program = tmp_path / "duramen"
    run("objcopy", "--strip-debug", harness.BINARY, program)
    copy_libraries(program, root)
    builder = Builder(tmp_path)
    builder.base("debian:bookworm-slim", root)
    cargo = root / "bin/cargo"
    cargo.write_text("#!/bin/sh\n[ \"$*\" = 'xtask release' ] && mkdir -p target/shipped && cp program target/shipped/duramen\n")
    cargo.chmod(0o755)
    builder.base("rust:1.95-bookworm", root)
    shutil.copytree(PACKAGING, context / "packaging")
    shutil.copy(program, context / "program")
    file = context / "packaging/container/Containerfile"
    builder.run("bud", "--pull-never", "--quiet", "--format", "docker", "--file", file, "--tag", "duramen", context)
    image = json.loads(builder.run("inspect", "--type", "image", "duramen"))["Docker"]["config"]
    assert image["User"] == "10001:10001" and "Healthcheck" in image and image["Volumes"] == {"/data": {}}, image
    container = builder.run("from", "--pull-never", "duramen").strip()
    within = lambda *words: builder.run("run", container, "--", *words)  # noqa: E731
    assert "correct" in within("duramen", "config", "check", "/etc/duramen/duramen.toml")
    within("sh", "-c", "echo data >/data/file")
    with pytest.raises(AssertionError, match="Permission denied"):
        within("sh", "-c", "echo data >/usr/file")
    # The server itself, until it serves; its end is that of the script.
    script = "duramen serve --config /etc/duramen/duramen.toml --memory 64mb --port 0 --admin=no >/data/said & until read -r line </data/said && [ -n \"$line\" ]; do :; done; kill $!; wait $!; echo $line"
    assert "ready resp=" in within("sh", "-c", script)
