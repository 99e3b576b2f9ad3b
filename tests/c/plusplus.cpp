// The header is C++ as well. plusplus POOL
#include <holdfast.h>

#include "check.h"

#include <cstring>
#include <string>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    hf_pool *pool = nullptr;
    hf_keyspace *keyspace = nullptr;
    CHECK(hf_pool_open(argv[1], HF_CREATE, &pool) == 0);
    CHECK(hf_keyspace_open(pool, "plusplus", HF_CREATE, &keyspace) == 0);
    const std::string key = "key", value(100000, 'v');
    CHECK(hf_put(keyspace, key.data(), key.size(), value.data(), value.size(), HF_DURABLE) == 0);
    std::string back(static_cast<size_t>(hf_get(keyspace, "key", 3, nullptr, 0)), '-');
    CHECK(hf_get(keyspace, "key", 3, &back[0], back.size()) == 100000 && back == value);
    hf_keyspace_close(keyspace);
    hf_pool_close(pool);
    std::puts("all as it should be");
    return 0;
}
