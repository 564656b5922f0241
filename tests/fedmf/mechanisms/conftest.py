"""Results of these tests are kept in a directory of their own, not in the user's."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMF_CACHE", str(tmp_path_factory.mktemp("mechanisms")))
        yield
