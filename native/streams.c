/* For dcpstream.client: puts the frames of a receive in the order of their streams.
 *
 * A server sends the streams of a connection in turns of one or two messages. The client works on runs of one stream,
 * so it would do for each turn what it could do for all turns of a stream at once. Streams do not depend on each other:
 * `order_by_stream` moves the frames of a stream together, the streams in the order of their first frames.
 *
 * Only data messages, snapshot markers and SEQNO_ADVANCED move. Every other frame keeps its place: none moves past it.
 * It may be of no stream, as an answer or a NOOP, or end one.
 */

#include "kernel.h"

enum {
    DATA_OPCODES = 3, /* mutation, deletion, expiration: adjacent */
    MARKER = 0x56,
    SEQNO_ADVANCED = 0x64,

    /* Streams that are moved together at once. With more, each has few frames in a receive, and nothing is gained. */
    STREAMS_MAX = 2048,
    SLOTS = 4096,
    /* Slots that are looked at for a stream. A peer that chooses opaques so that they fall together gains nothing: its
     * frames stay as they are. */
    PROBES_MAX = 32,
};

/* Knuth's multiplier: opaques are small numbers that rise, and spread over the slots. */
static const uint32_t SPREAD = 2654435761u;
enum { SPREAD_SHIFT = 20 }; /* leaves the bits of a slot's number */

typedef struct {
    uint32_t opaque, round; /* the slot is free if it is of an earlier round */
    uint32_t stream;
} Slot;

typedef struct {
    Slot slots[SLOTS];
    uint32_t round;
    size_t places[STREAMS_MAX]; /* where the next frame of each stream goes */
    uint16_t *streams;          /* of each frame */
    int64_t *moved;
} Order;

INLINE int may_move(const uint8_t *frame) {
    uint8_t opcode = frame[1];
    int is_data = opcode >= MUTATION && opcode < MUTATION + DATA_OPCODES;
    return (frame[0] == REQUEST && (is_data || opcode == MARKER || opcode == SEQNO_ADVANCED)) ||
           (frame[0] == FLEX_REQUEST && is_data);
}

INLINE uint32_t opaque_of(const uint8_t *frame) { return u32_at(frame + OPAQUE_AT); }

/* The number of a stream; `count` for a new one, and -1 if there is no room for it. */
static int32_t stream_of(Order *order, uint32_t opaque, uint32_t count) {
    uint32_t at = opaque * SPREAD;
    for (uint32_t i = 0; i < PROBES_MAX; i++) {
        Slot *slot = &order->slots[((at >> SPREAD_SHIFT) + i) % SLOTS];
        if (slot->round != order->round) {
            if (count == STREAMS_MAX)
                return -1;
            *slot = (Slot){.opaque = opaque, .round = order->round, .stream = count};
            return (int32_t)count;
        }
        if (slot->opaque == opaque)
            return (int32_t)slot->stream;
    }
    return -1;
}

/* Order frames that may all move. */
static void order_part(Order *order, const uint8_t *bytes, int64_t *starts, size_t count) {
    uint32_t streams = 0, last = 0;
    int32_t stream = -1;
    order->round++;
    for (size_t i = 0; i < count; i++) {
        uint32_t opaque = opaque_of(bytes + starts[i]);
        if (stream < 0 || opaque != last) {
            stream = stream_of(order, opaque, streams);
            if (stream < 0)
                return;
            if ((uint32_t)stream == streams)
                order->places[streams++] = 0;
            last = opaque;
        }
        order->streams[i] = (uint16_t)stream;
        order->places[stream]++;
    }
    size_t before = 0;
    for (uint32_t i = 0; i < streams; i++) {
        size_t frames = order->places[i];
        order->places[i] = before;
        before += frames;
    }
    for (size_t i = 0; i < count; i++)
        order->moved[order->places[order->streams[i]]++] = starts[i];
    memcpy(starts, order->moved, count * sizeof(*starts));
}

int order_by_stream(const uint8_t *bytes, int64_t *starts, size_t count) {
    Order *order = calloc(1, sizeof(Order));
    int is_done = 0;
    if (!order)
        return 0;
    order->streams = malloc(count * sizeof(*order->streams));
    order->moved = malloc(count * sizeof(*order->moved));
    if (order->streams && order->moved) {
        for (size_t first = 0, stop; first < count; first = stop + 1) {
            for (stop = first; stop < count && may_move(bytes + starts[stop]);)
                stop++;
            if (stop - first > 1)
                order_part(order, bytes, starts + first, stop - first);
        }
        is_done = 1;
    }
    free(order->streams);
    free(order->moved);
    free(order);
    return is_done;
}
