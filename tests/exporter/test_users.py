"""Files of users, as htpasswd makes them, and those that will not do; what a password costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doors import PASSWORD, hashed

from ws_guard.exporter.users import Passwords, Users, UsersError, read_users

#: 22 characters of salt and 31 of hash.
SALTED = "abcdefghijklmnopqrstuu" + "A" * 31


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_users_by_name(file: Path) -> None:
    file.write_text(
        f"# scrapers\n\nprometheus:$2b$10${SALTED}\n  ada:$2y$05${SALTED}  \r\nold:$2a$04${SALTED}"
    )
    assert read_users(str(file)).hashes == {
        "prometheus": f"$2b$10${SALTED}".encode(),
        "ada": f"$2y$05${SALTED}".encode(),
        "old": f"$2a$04${SALTED}".encode(),
    }


def test_the_last_line_of_a_user_counts(file: Path) -> None:
    file.write_text(f"ada:$2b$04${SALTED}\nada:$2b$05${SALTED}\n")
    assert read_users(str(file)).hashes == {"ada": f"$2b$05${SALTED}".encode()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it names no user"),
        ("# nobody\n", "it names no user"),
        ("ada", "line 1: it is not user:hash"),
        (f"\n:$2b$10${SALTED}", "line 2: it is not user:hash"),
        ("ada:plain", "line 1: its hash is not bcrypt's"),
        ("ada:$apr1$abc$def", "line 1: its hash is not bcrypt's"),
        ("ada:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "line 1: its hash is not bcrypt's"),
        (f"ada:$2b$10${SALTED[:-1]}", "line 1: its hash is not bcrypt's"),
        (f"ada:$2b$10${SALTED}:extra", "line 1: its hash is not bcrypt's"),
        (f"ada:$2b$10${SALTED[:21]}v{SALTED[22:]}", "line 1: its hash is not bcrypt's"),
        (f"ada:$2b$03${SALTED}", "line 1: its cost is 3, not 4 to 14"),
        (f"ada:$2b$31${SALTED}", "line 1: its cost is 31, not 4 to 14"),
        ("".join(f"u{n}:$2b$04${SALTED}\n" for n in range(1001)), "it names more than 1,000 users"),
        ("#" * (1 << 20) + "\n", "it has more than 1,048,576 bytes"),
    ],
)
def test_what_will_not_do_is_named(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(
        UsersError, match=re.escape(f"WS_GUARD_BASIC_AUTH_FILE={file}: {told}")
    ) as c:
        read_users(str(file))
    assert "\n" not in str(c.value)
    assert SALTED[:10] not in str(c.value), "no part of a hash in a log"


def test_bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsersError, match="it is no text in UTF-8; make it with htpasswd -B"):
        read_users(str(file))


def test_no_file(file: Path) -> None:
    with pytest.raises(UsersError, match="No such file or directory; make it with htpasswd -B"):
        read_users(str(file))


def run_without_bcrypt(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A program whose Python has no bcrypt."""
    block = "import sys; sys.modules['bcrypt'] = None; "
    return subprocess.run(
        [sys.executable, "-c", block + program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_bcrypt_one_line_says_what_to_install(file: Path) -> None:
    file.write_text(f"ada:$2b$04${SALTED}\n")
    done = run_without_bcrypt(
        "from ws_guard.cli import main; sys.argv[1:] = ['serve']; main()",
        WS_GUARD_BASIC_AUTH_FILE=str(file),
        WS_GUARD_LISTEN="127.0.0.1:0",
    )
    assert done.returncode == 2
    told = "WS_GUARD_BASIC_AUTH_FILE needs bcrypt; pip install 'ws-guard[exporter]'"
    assert done.stderr.count("\n") == 1
    assert told in done.stderr


def test_without_users_nobody_needs_bcrypt(tmp_path: Path) -> None:
    program = "from ws_guard.settings import require_settings; "
    program += "from ws_guard.exporter.server import Exporter; Exporter(require_settings()).bind()"
    done = run_without_bcrypt(
        program, WS_GUARD_LISTEN="127.0.0.1:0", WS_GUARD_BOARD=str(tmp_path / "board")
    )
    assert (done.returncode, done.stderr) == (0, "")


class CountingPasswords(Passwords):
    """Counts bcrypt's work, and keeps the costs that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[int] = []
        real = self._matches

        def matches(password: bytes, hashed: bytes) -> bool:
            self.costs.append(int(hashed[4:6]))
            return real(password, hashed)

        self._matches = matches


def test_every_wrong_answer_costs_one_check() -> None:
    """Known or not, with a password that cannot be right or one that is some other user's."""
    users = Users({"ada": hashed(cost=5)})
    passwords = CountingPasswords()
    for user, password in (
        ("ada", b"wrong"),
        ("ada", b"\0"),
        ("ada", b"x" * 100),
        ("eve", b"wrong"),
        ("eve", PASSWORD.encode()),
        ("", b""),
    ):
        assert not passwords.check(users, user, password)
    assert passwords.costs == [5] * 6


def test_a_nul_cuts_no_password_short() -> None:
    users = Users({"ada": hashed("secret?")})
    assert Passwords().check(users, "ada", b"secret?")
    assert not Passwords().check(users, "ada", b"secret\0")


def test_an_unknown_user_costs_the_same_each_time_and_all_together_what_the_known_do() -> None:
    users = Users({"ada": hashed(cost=4), "bob": hashed(cost=5)})
    passwords = CountingPasswords()
    names = [f"eve{number}" for number in range(40)]
    for name in names:
        passwords.check(users, name, b"x")
    first = passwords.costs[:]
    for name in names:
        passwords.check(users, name, b"x")
    assert passwords.costs == first * 2
    # Both sides of a fair coin in 40 throws, but for one case in 2^39.
    assert set(first) == {4, 5}


def test_a_right_password_is_checked_once() -> None:
    users = Users({"ada": hashed()})
    passwords = CountingPasswords()
    assert not passwords.remembered(users, "ada", PASSWORD.encode())
    assert passwords.check(users, "ada", PASSWORD.encode())
    assert passwords.remembered(users, "ada", PASSWORD.encode())
    assert not passwords.remembered(users, "ada", b"other")
    assert not passwords.remembered(Users({"ada": hashed()}), "ada", PASSWORD.encode()), "new salt"
    assert not passwords.remembered(Users({"bob": hashed()}), "ada", PASSWORD.encode())
    assert PASSWORD not in repr(vars(passwords)), "what is kept is a keyed hash"
