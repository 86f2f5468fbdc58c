/* The header of a frame, for the files of the kernel that follow frames. */

#ifndef DCPSTREAM_HEAD_H
#define DCPSTREAM_HEAD_H

#include "kernel.h"

enum {
    DELETION = 0x58,
    EXPIRATION = 0x59,
    DELETION_EXTRAS = 18,
    DELETION_V2_EXTRAS = 21,
    EXPIRATION_EXTRAS = 20,

    MAX_FRAME_BYTES = 30 * 1024 * 1024, /* the server's default max_packet_size */
};

typedef struct {
    uint8_t magic, opcode, extras, datatype;
    uint32_t framing, key, body;
} Head;

INLINE int is_magic(uint8_t byte) { return (byte >= 0x80 && byte <= 0x83) || byte == 0x08 || byte == 0x18; }

/* Read the header at `p`; false if it is none: an unknown magic, parts longer than the body, or too long a frame. */
INLINE int read_head(const uint8_t *p, Head *head) {
    head->magic = p[0];
    head->opcode = p[1];
    head->extras = p[4];
    head->datatype = p[5];
    head->body = u32_at(p + 8);
    if (head->magic >= 0x80) {
        head->framing = 0;
        head->key = u16_at(p + 2);
    } else {
        head->framing = p[2];
        head->key = p[3];
    }
    return is_magic(head->magic) && head->framing + head->extras + head->key <= head->body &&
           head->body <= MAX_FRAME_BYTES - HEADER_BYTES;
}

INLINE int is_data(const Head *head) {
    return head->opcode >= MUTATION && head->opcode <= EXPIRATION &&
           (head->magic == REQUEST || head->magic == FLEX_REQUEST);
}

INLINE int extras_fit(const Head *head) {
    switch (head->opcode) {
    case MUTATION:
        return head->extras == MUTATION_EXTRAS;
    case DELETION:
        return head->extras == DELETION_EXTRAS || head->extras == DELETION_V2_EXTRAS;
    default:
        return head->extras == EXPIRATION_EXTRAS;
    }
}

#endif
