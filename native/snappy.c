/* Inflates a raw snappy block, as SDKs send values. What looks odd in any way is refused; Python then judges it. */

#include "kernel.h"

enum {
    LENGTH_BYTES = 5,
    LITERAL = 0,
    NEAR = 1, /* copies: with 11, 16 and 32 bits of offset */
    FAR = 2,
};

/* The length of the inflated block, and where its elements begin; -1 if the length is not valid. */
static int64_t inflated_length(const uint8_t *block, size_t size, size_t *at) {
    uint64_t length = 0;
    for (size_t i = 0; i < size && i < LENGTH_BYTES; i++) {
        length |= (uint64_t)(block[i] & 0x7F) << (7 * i);
        if (block[i] < 0x80) {
            *at = i + 1;
            return i && !block[i] ? -1 : (int64_t)length;
        }
    }
    return -1;
}

int64_t snappy_length(const uint8_t *block, size_t size) {
    size_t at;
    return inflated_length(block, size, &at);
}

/* Read a number of up to four bytes, little end first; the caller has checked that they are there. */
static uint32_t number_at(const uint8_t *p, size_t bytes) {
    uint32_t number = 0;
    for (size_t i = 0; i < bytes; i++)
        number |= (uint32_t)p[i] << (8 * i);
    return number;
}

int snappy_inflate(const uint8_t *block, size_t size, uint8_t *out, size_t length) {
    size_t at = 0, made = 0;
    if (inflated_length(block, size, &at) != (int64_t)length)
        return 0;
    while (at < size) {
        const uint8_t tag = block[at++];
        const int kind = tag & 3;
        if (kind == LITERAL) {
            size_t count = (size_t)(tag >> 2) + 1;
            if (count > 60) { /* the next one to four bytes have it */
                const size_t bytes = count - 60;
                if (size - at < 4) /* the twin in Python wants four bytes in any case */
                    return 0;
                count = (size_t)number_at(block + at, bytes) + 1;
                at += bytes;
            }
            if (size - at < count || length - made < count)
                return 0;
            memcpy(out + made, block + at, count);
            at += count;
            made += count;
            continue;
        }
        const size_t bytes = kind == NEAR ? 1 : kind == FAR ? 2 : 4;
        if (size - at < bytes)
            return 0;
        size_t offset = number_at(block + at, bytes), count = (size_t)(tag >> 2) + 1;
        at += bytes;
        if (kind == NEAR) {
            offset |= (size_t)(tag >> 5) << 8;
            count = (size_t)(tag >> 2 & 7) + 4;
        }
        if (!offset || offset > made || length - made < count)
            return 0;
        if (offset >= count)
            memcpy(out + made, out + made - offset, count);
        else
            for (size_t i = 0; i < count; i++) /* it repeats what it makes */
                out[made + i] = out[made + i - offset];
        made += count;
    }
    return made == length;
}
