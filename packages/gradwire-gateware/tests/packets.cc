// Sends packets through an exported block while its neighbours stall, and writes those that come out.
//
//     packets STALLS < packets in > packets out
//
// A packet is its length in four bytes, little-endian, and its bytes; STALLS is none, random or bursts. What goes in
// has the number of its values before that, for blocks that are told it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "Vblock.h"

namespace {

constexpr size_t kNbytes = WIDTH / 8;
constexpr int kPatience = 200000;  // a codec may wait for the end of a chunk
using Packet = std::vector<uint8_t>;
struct Given {
    uint32_t values;
    Packet packet;
};
using Keep = std::remove_reference_t<decltype(Vblock::s_axis_tkeep)>;

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(1);
}

std::vector<Given> read_packets() {
    std::vector<Given> packets;
    uint32_t head[2];
    while (std::fread(head, 4, 2, stdin) == 2) {
        Packet packet(head[1]);
        if (std::fread(packet.data(), 1, head[1], stdin) != head[1]) fail("the input ends within a packet");
        packets.push_back({head[0], std::move(packet)});
    }
    return packets;
}

void write_packet(const Packet& packet) {
    uint32_t nbytes = static_cast<uint32_t>(packet.size());
    std::fwrite(&nbytes, 4, 1, stdout);
    std::fwrite(packet.data(), 1, nbytes, stdout);
}

// In which cycles a neighbour pauses.
class Pauses {
   public:
    Pauses(std::string stalls, unsigned seed) : stalls_(std::move(stalls)), draw_(seed) {}

    bool next() {
        if (stalls_ == "none") return false;
        if (stalls_ == "random") return draw_() % 10 < 3;
        if (left_ == 0) {
            left_ = 1 + draw_() % 40;
            pauses_ = !pauses_;
        }
        --left_;
        return pauses_;
    }

   private:
    std::string stalls_;
    std::mt19937 draw_;
    uint64_t left_ = 0;
    bool pauses_ = true;
};

// What is on the output's wires.
struct Word {
    uint8_t data[kNbytes];
    Keep keep;
    bool last;

    explicit Word(const Vblock& block) : keep(block.m_axis_tkeep), last(block.m_axis_tlast) {
        std::memcpy(data, &block.m_axis_tdata, kNbytes);
    }

    bool operator==(const Word& other) const {
        return !std::memcmp(data, other.data, kNbytes) && keep == other.keep && last == other.last;
    }
};

void put(Vblock& block, const Given& given, size_t at) {
    const Packet& packet = given.packet;
    size_t count = std::min(kNbytes, packet.size() - at);
    std::memset(&block.s_axis_tdata, 0, kNbytes);
    std::memcpy(&block.s_axis_tdata, packet.data() + at, count);
    block.s_axis_tkeep = count == kNbytes ? static_cast<Keep>(~uint64_t{0} >> (64 - kNbytes))
                                          : static_cast<Keep>((uint64_t{1} << count) - 1);
    block.s_axis_tlast = at + count == packet.size();
    block.s_axis_tvalid = 1;
#ifdef IS_TOLD_VALUES
    block.values = given.values;
#endif
}

}  // namespace

int main(int, char** arguments) {
    const std::vector<Given> packets = read_packets();
    Pauses producer(arguments[1], 1), consumer(arguments[1], 2);
    Vblock block;
    auto edge = [&block] {
        block.clk = 1;
        block.eval();
        block.clk = 0;
        block.eval();
    };
    block.rst = 1;
    edge();
    block.rst = 0;

    size_t sent = 0, at = 0, received = 0;
    Packet packet;
    std::vector<Word> stalled;
    for (int idle = 0; received < packets.size(); ++idle) {
        if (idle == kPatience) fail("nothing came for " + std::to_string(idle) + " cycles");
        if (!block.s_axis_tvalid && sent < packets.size() && !producer.next()) put(block, packets[sent], at);
        block.m_axis_tready = !consumer.next();
        block.eval();
        if (!stalled.empty() && !(block.m_axis_tvalid && stalled.back() == Word(block))) {
            fail("a word changed while it was stalled");
        }
        stalled.clear();
        if (block.m_axis_tvalid) {
            Word word(block);
            if (block.m_axis_tready) {
                size_t count = __builtin_popcountll(word.keep);
                if (word.keep & (word.keep + uint64_t{1})) fail("kept bytes do not come first");
                if (!word.last && count != kNbytes) fail("a word is partial that is not the last one");
                packet.insert(packet.end(), word.data, word.data + count);
                if (word.last) {
                    write_packet(packet);
                    packet.clear();
                    ++received;
                }
                idle = 0;
            } else {
                stalled.push_back(word);
            }
        }
        bool moves = block.s_axis_tvalid && block.s_axis_tready;
        edge();
        if (moves) {
            at += kNbytes;
            if (block.s_axis_tlast) {
                at = 0;
                ++sent;
            }
            block.s_axis_tvalid = 0;
        }
    }
    return 0;
}
