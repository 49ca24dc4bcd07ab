// An engine in C++ with a scheduler that looks prompts up and a worker that stores and loads them, each with a client of
// its own, as the processes of a larger engine have. It lives through restarts of the server.
//
//   c++ -std=c++17 engine.cpp $(pkg-config --cflags --libs kvasir) -o engine
//   ./engine SOCKET         stores and loads once
//   ./engine SOCKET 3       does so with this server and the next two
//
// Its model has a layer of full attention and one of a sliding window. All pages of a block lie together in one tensor,
// [blocks, layers, page].

#include <kvasir.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t layers = 2;
constexpr std::uint32_t blocks = 256;
constexpr std::uint32_t block_tokens = 16;
constexpr std::size_t page_bytes = 6000; // no multiple of anything
constexpr std::uint64_t window_tokens = 48;
constexpr std::uint32_t chunks = 4;
constexpr std::chrono::seconds patience{60};

// What the library has to say, as an exception.
struct kvasir_failure : std::runtime_error {
    kvasir_code code;
    explicit kvasir_failure(kvasir_code code) : std::runtime_error(kvasir_last_error_message()), code(code) {}
};

void check(kvasir_code code)
{
    if (code != KVASIR_CODE_OK)
        throw kvasir_failure(code);
}

// A struct of the library with its size set and all else zero.
template <typename T> T made()
{
    T value;
    KVASIR_INIT(&value);
    return value;
}

// A client that closes with its scope.
class client {
public:
    client(const std::string &socket, kvasir_client_kind kind, const char *name)
    {
        auto options = made<kvasir_client_options>();
        options.kind = kind;
        options.socket = socket.c_str();
        options.name = name;
        std::memcpy(options.engine_instance, "engine in C++ 17", sizeof options.engine_instance);
        options.grant_bytes = 1 << 20;
        check(kvasir_client_open(&options, &handle_));
    }
    client(const client &) = delete;
    client &operator=(const client &) = delete;
    ~client() { kvasir_client_close(handle_); }

    kvasir_client get() const { return handle_; }

    kvasir_health health() const
    {
        auto health = made<kvasir_health>();
        check(kvasir_get_health(handle_, &health));
        return health;
    }

    std::string state() const
    {
        std::size_t length = 0;
        check(kvasir_state_text(handle_, nullptr, 0, &length));
        std::string text(length + 200, '\0'); // it may have grown when it is asked again
        check(kvasir_state_text(handle_, text.data(), text.size(), &length));
        text.resize(length);
        return text;
    }

private:
    kvasir_client handle_{};
};

// The keys of a prompt, freed with their scope.
class chain {
public:
    chain(const kvasir_key &seed, std::uint32_t chunk_tokens, const std::vector<std::uint32_t> &tokens)
    {
        auto options = made<kvasir_chain_options>();
        options.seed = seed;
        options.chunk_size = chunk_tokens;
        const std::string tenant = "one tenant of many";
        options.salt = {reinterpret_cast<const std::uint8_t *>(tenant.data()), tenant.size()};
        check(kvasir_chain_new(&options, &handle_));
        check(kvasir_chain_extend(handle_, tokens.data(), tokens.size()));
    }
    chain(const chain &) = delete;
    chain &operator=(const chain &) = delete;
    ~chain() { kvasir_chain_free(handle_); }

    kvasir_chain get() const { return handle_; }

    std::vector<kvasir_key> keys() const
    {
        std::size_t count = 0;
        check(kvasir_chain_size(handle_, nullptr, &count));
        std::vector<kvasir_key> keys(count);
        check(kvasir_chain_keys(handle_, 0, count, keys.data()));
        return keys;
    }

private:
    kvasir_chain handle_{};
};

template <typename Condition> void wait_for(Condition holds, const char *what)
{
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!holds()) {
        if (std::chrono::steady_clock::now() > end)
            throw std::runtime_error(std::string("waited too long for ") + what);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

class engine {
public:
    explicit engine(const std::string &socket)
        : kv_(static_cast<std::size_t>(blocks) * layers * page_bytes),
          scheduler_(socket, KVASIR_CLIENT_KIND_SCHEDULER, "engine.cpp scheduler"),
          worker_(socket, KVASIR_CLIENT_KIND_WORKER, "engine.cpp worker")
    {
        wait_until_healthy();
        const std::array<kvasir_span, 2> spans{{{0, 0, block_tokens}, {1, 0, block_tokens}}};
        auto negotiation = made<kvasir_negotiation>();
        check(kvasir_required_alignment(spans.data(), spans.size(), &negotiation.required_alignment));
        negotiation.spans = spans.data();
        negotiation.span_count = spans.size();
        std::uint64_t of_scheduler = 0, of_worker = 0;
        check(kvasir_negotiate(scheduler_.get(), &negotiation, &of_scheduler));
        check(kvasir_negotiate(worker_.get(), &negotiation, &of_worker));
        if (of_scheduler != of_worker)
            throw std::runtime_error("two chunk sizes");
        chunk_tokens_ = static_cast<std::uint32_t>(of_worker);
        set_memory();
        register_with(spans, negotiation.required_alignment);
    }

    std::array<std::uint8_t, 16> boot() const
    {
        std::array<std::uint8_t, 16> boot;
        std::memcpy(boot.data(), worker_.health().boot_id, boot.size());
        return boot;
    }

    // The same prompt twice: the second time its KV cache comes from Kvasir.
    void serve(std::uint32_t prompt)
    {
        std::vector<std::uint32_t> tokens(chunks * chunk_tokens_);
        for (std::uint32_t at = 0; at < tokens.size(); at++)
            tokens[at] = prompt * 100000 + at;
        const chain keys(seed_, chunk_tokens_, tokens);
        if (look_up(keys, tokens.size()).hit_tokens != 0)
            throw std::runtime_error("a hit in an empty cache");
        release_all();
        compute(prompt);
        store(keys);

        const auto hit = look_up(keys, tokens.size());
        if (hit.hit_tokens != tokens.size())
            throw std::runtime_error("hit " + std::to_string(hit.hit_tokens) + " tokens");
        const std::int64_t first = 1 + chunks * blocks_per_chunk();
        load(hit.objects, first);
        release_all();
        compare(prompt, first);
        std::cout << "prompt " << prompt << ": hit " << hit.hit_tokens << " of " << tokens.size() << " tokens, loaded "
                  << hit.objects.size() << " objects, every byte as it was stored" << std::endl;
    }

    // Goes on without a cache until there is another server.
    void wait_for_another(const std::array<std::uint8_t, 16> &before)
    {
        std::cout << "waiting for another server" << std::endl;
        bool told = false;
        wait_for(
            [&] {
                if (!told && worker_.state().rfind("degraded", 0) == 0) {
                    std::cout << "no server: computing without a cache" << std::endl;
                    told = true;
                }
                return worker_.health().healthy && scheduler_.health().healthy && boot() != before;
            },
            "another server");
        std::cout << "back with another server" << std::endl;
    }

private:
    struct hit {
        std::uint64_t hit_tokens;
        std::vector<kvasir_found> objects;
    };

    std::uint32_t blocks_per_chunk() const { return chunk_tokens_ / block_tokens; }

    void wait_until_healthy() const
    {
        wait_for([&] { return scheduler_.health().healthy && worker_.health().healthy; }, "a server");
    }

    void set_memory()
    {
        const kvasir_region region{kv_.data(), kv_.size()};
        std::array<kvasir_layer, layers> pages;
        std::array<kvasir_kv_group, layers> kv_groups;
        std::array<kvasir_group_memory, layers> groups;
        for (std::uint32_t layer = 0; layer < layers; layer++) {
            pages[layer] = {0, 0, layer * page_bytes, layers * page_bytes, page_bytes};
            kv_groups[layer] = made<kvasir_kv_group>();
            kv_groups[layer].tokens_per_block = block_tokens;
            kv_groups[layer].layers = &pages[layer];
            kv_groups[layer].layer_count = 1;
            groups[layer] = made<kvasir_group_memory>();
            groups[layer].group = static_cast<std::uint16_t>(layer);
            groups[layer].kv_groups = &kv_groups[layer];
            groups[layer].kv_group_count = 1;
        }
        auto memory = made<kvasir_memory>();
        memory.blocks = blocks;
        memory.regions = &region;
        memory.region_count = 1;
        memory.groups = groups.data();
        memory.group_count = groups.size();
        check(kvasir_set_memory(worker_.get(), &memory));
    }

    void register_with(const std::array<kvasir_span, 2> &spans, std::uint64_t alignment)
    {
        auto domain = made<kvasir_domain>();
        const std::string weights = "revision 2", fingerprint = "[block][layer][page]";
        domain.model = "example/hybrid";
        domain.weights_id = {reinterpret_cast<const std::uint8_t *>(weights.data()), weights.size()};
        domain.kv_dtype = "float16";
        domain.fingerprint = {reinterpret_cast<const std::uint8_t *>(fingerprint.data()), fingerprint.size()};
        domain.parallel_shape = "tp=1";
        std::array<kvasir_group, 2> groups{made<kvasir_group>(), made<kvasir_group>()};
        groups[0].kind = KVASIR_GROUP_KIND_FULL;
        groups[1].kind = KVASIR_GROUP_KIND_SLIDING_WINDOW;
        groups[1].window_tokens = window_tokens;
        for (std::uint16_t group = 0; group < groups.size(); group++) {
            groups[group].group = group;
            groups[group].parts = 1;
            groups[group].unit_bytes = alignment / block_tokens * page_bytes;
        }
        auto registration = made<kvasir_registration>();
        registration.domain = &domain;
        registration.world_size = 1;
        registration.required_alignment = alignment;
        registration.spans = spans.data();
        registration.span_count = spans.size();
        registration.groups = groups.data();
        registration.group_count = groups.size();
        registration.blocks = blocks;
        registration.layers = layers;
        check(kvasir_register(worker_.get(), &registration, &seed_));
        // The scheduler computes the same seed from the same fields.
        kvasir_key seed;
        check(kvasir_domain_seed(&domain, chunk_tokens_, &seed));
        if (std::memcmp(&seed, &seed_, sizeof seed) != 0)
            throw std::runtime_error("two seeds");
    }

    // The scheduler does not wait for a lookup: it asks again in its next step.
    hit look_up(const chain &keys, std::uint64_t max_tokens)
    {
        auto request = made<kvasir_lookup_request>();
        request.label = 7;
        request.chain = keys.get();
        request.max_tokens = max_tokens;
        std::uint64_t ticket = 0;
        check(kvasir_lookup_start(scheduler_.get(), &request, &ticket));
        std::vector<kvasir_found> found((chunks + 1) * layers);
        std::array<std::uint64_t, layers> present{};
        auto answer = made<kvasir_answer>();
        answer.found = found.data();
        answer.found_capacity = found.size();
        answer.present_tokens = present.data();
        answer.present_capacity = present.size();
        std::uint32_t ready = 0;
        wait_for(
            [&] {
                check(kvasir_lookup_poll(scheduler_.get(), ticket, 1, &ready, &answer));
                return ready != 0;
            },
            "an answer");
        found.resize(answer.found_count);
        return {answer.hit_tokens, std::move(found)};
    }

    void release_all() { check(kvasir_release_label(scheduler_.get(), 7)); }

    std::uint8_t *page(std::int64_t block, std::uint32_t layer)
    {
        return kv_.data() + (static_cast<std::size_t>(block) * layers + layer) * page_bytes;
    }

    // The bytes of a page follow from the prompt, the block and the layer.
    static std::vector<std::uint8_t> content(std::uint32_t prompt, std::int64_t block, std::uint32_t layer)
    {
        std::vector<std::uint8_t> bytes(page_bytes);
        std::uint64_t state = (std::uint64_t{prompt} << 40) + (std::uint64_t{layer} << 32) +
                              static_cast<std::uint64_t>(block) + 1;
        for (auto &byte : bytes) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            byte = static_cast<std::uint8_t>(state >> 56);
        }
        return bytes;
    }

    void compute(std::uint32_t prompt)
    {
        for (std::int64_t block = 1; block <= chunks * blocks_per_chunk(); block++) {
            for (std::uint32_t layer = 0; layer < layers; layer++) {
                const auto bytes = content(prompt, block, layer);
                std::memcpy(page(block, layer), bytes.data(), bytes.size());
            }
        }
    }

    void store(const chain &chain)
    {
        const auto keys = chain.keys();
        const std::size_t count = keys.size() * layers;
        const std::uint64_t bytes = std::uint64_t{chunks} * blocks_per_chunk() * layers * page_bytes;
        std::uint64_t held = 0;
        wait_for(
            [&] {
                check(kvasir_reserve(worker_.get(), bytes + (std::uint64_t{1} << 18), &held));
                return held >= bytes;
            },
            "room");
        std::vector<std::int64_t> ids(chunks * blocks_per_chunk());
        for (std::size_t at = 0; at < ids.size(); at++)
            ids[at] = static_cast<std::int64_t>(at) + 1;
        std::vector<kvasir_block_list> lists(count);
        std::vector<kvasir_store_item> items(count);
        std::vector<std::uint32_t> outcomes(count);
        for (std::size_t at = 0; at < count; at++) {
            const std::size_t chunk = at / layers;
            lists[at] = {ids.data() + chunk * blocks_per_chunk(), blocks_per_chunk()};
            items[at] = made<kvasir_store_item>();
            items[at].key = keys[chunk];
            items[at].parent = chunk > 0 ? &keys[chunk - 1] : nullptr;
            items[at].group = static_cast<std::uint16_t>(at % layers);
            items[at].tokens = chunk_tokens_;
            items[at].lists = &lists[at];
            items[at].list_count = 1;
        }
        check(kvasir_store(worker_.get(), items.data(), items.size(), nullptr, 0, outcomes.data()));
        for (const auto outcome : outcomes) {
            if (outcome != KVASIR_OUTCOME_PUBLISHED)
                throw std::runtime_error("a store came to " + std::to_string(outcome));
        }
    }

    // Loads what the scheduler found: all of the full attention, and the window's end.
    void load(const std::vector<kvasir_found> &objects, std::int64_t first)
    {
        std::vector<std::vector<std::int64_t>> ids(objects.size());
        std::vector<kvasir_block_list> lists(objects.size());
        std::vector<kvasir_load_item> items(objects.size());
        std::vector<std::uint8_t> loaded(objects.size());
        for (std::size_t at = 0; at < objects.size(); at++) {
            for (std::uint32_t block = 0; block < blocks_per_chunk(); block++)
                ids[at].push_back(first + objects[at].chunk * blocks_per_chunk() + block);
            lists[at] = {ids[at].data(), ids[at].size()};
            items[at] = made<kvasir_load_item>();
            items[at].key = objects[at].key;
            items[at].group = objects[at].group;
            items[at].tokens = objects[at].tokens;
            items[at].lists = &lists[at];
            items[at].list_count = 1;
        }
        check(kvasir_load(worker_.get(), 7, 0, items.data(), items.size(), loaded.data()));
        for (const auto whole : loaded) {
            if (!whole)
                throw std::runtime_error("an object went away");
        }
    }

    void compare(std::uint32_t prompt, std::int64_t first)
    {
        const std::int64_t all = chunks * blocks_per_chunk();
        for (std::int64_t block = 0; block < all; block++) {
            for (std::uint32_t layer = 0; layer < layers; layer++) {
                // Before the window nothing is loaded.
                if (layer == 1 && (all - block) * block_tokens > static_cast<std::int64_t>(window_tokens))
                    continue;
                const auto expected = content(prompt, 1 + block, layer);
                if (std::memcmp(page(first + block, layer), expected.data(), expected.size()) != 0)
                    throw std::runtime_error("block " + std::to_string(block) + " has other bytes");
            }
        }
    }

    std::vector<std::uint8_t> kv_; // before the clients, so that it is there until they have closed
    client scheduler_, worker_;
    std::uint32_t chunk_tokens_ = 0;
    kvasir_key seed_{};
};

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::cerr << "usage: " << argv[0] << " SOCKET [SERVERS]\n";
        return 2;
    }
    try {
        const int servers = argc > 2 ? std::atoi(argv[2]) : 1;
        engine engine(argv[1]);
        for (int server = 1; server <= servers; server++) {
            const auto boot = engine.boot();
            engine.serve(static_cast<std::uint32_t>(server));
            if (server < servers)
                engine.wait_for_another(boot);
        }
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
    return 0;
}
