from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.apiserver.calls import authenticate, read_tokens
from kubelocal.apiserver.errors import ApiError


def test_tokens_name_users_and_groups(tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    file.write_text('t1,admin,1,"system:masters,dev"\n# a remark,x,y\n\nt2,bob,2\n')
    users = read_tokens(file)
    assert users["t1"].groups == ("system:masters", "dev")
    assert authenticate("Bearer t2", users).name == "bob"
    for header in ("", "Bearer t3", "Basic t1", "t1"):
        with pytest.raises(ApiError) as caught:
            authenticate(header, users)
        assert caught.value.code == 401


@pytest.mark.parametrize("text", ["", "only-a-token\n"])
def test_a_file_without_users_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.csv"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"tokens\.csv"):
        read_tokens(file)
