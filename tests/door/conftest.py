from tests.data.conftest import cache as cache
