/* For dcpstream.arrow: finds the frames in received bytes, and fills Arrow buffers with the columns of the data
 * messages among them.
 *
 * `scan` follows the chain of frames, checks every header and counts, so that the caller can allocate buffers of the
 * right size, from Arrow's pool. `decode` fills these buffers in one pass. It reads the frames again and checks every
 * offset against the buffers that it was given, so no content of any argument makes it read or write elsewhere.
 *
 * Only faults are found here, not named: the caller passes the faulty frame to the plain Python code, which raises the
 * error. The plain code is also the definition of what is right; tests compare the two.
 *
 * It uses Python's stable interface of 3.11, so one build serves all later versions. Numbers are put together from
 * bytes, so it does not depend on the order of bytes or the alignment of the host.
 */

#include "head.h"

enum {
    MAX_LEB128_BYTES = 5,               /* a u32 in groups of 7 bits */
    STREAM_ID_INFO = 2,                 /* the id of a stream id among framing extras */
    STREAM_ID_BYTES = 2,
    ESCAPE = 15, /* a nibble of framing extras that continues in a byte */

    /* Bytes of frames from which other threads may run meanwhile. Below, switching costs more than it gives. */
    RELEASE_BYTES = 64 * 1024,
    /* Frames that room is made for at first, and the factor by which it grows. */
    FIRST_STARTS = 1024,
    GROWTH = 2,
    /* Copies up to this length take whole blocks where both sides have room for them. */
    BLOCK = 16,
    BLOCKS_MAX = 4,
};

/* ------------------------------------------------------------------------------------------------------- frames */

/* The stream id among framing extras, 0 if there is none; -1 if they cannot be read. */
static int32_t stream_id(const uint8_t *p, uint32_t length) {
    const uint8_t *end = p + length;
    while (p < end) {
        uint32_t id = *p >> 4, bytes = *p & 0xF;
        p++;
        if (id == ESCAPE) {
            if (p == end)
                return -1;
            id += *p++;
        }
        if (bytes == ESCAPE) {
            if (p == end)
                return -1;
            bytes += *p++;
        }
        if (bytes > (uint32_t)(end - p))
            return -1;
        if (id == STREAM_ID_INFO)
            return bytes == STREAM_ID_BYTES ? u16_at(p) : -1;
        p += bytes;
    }
    return 0;
}

/* The collection id in front of a key of `length` bytes: the bytes that it takes, 0 if it cannot be read. */
INLINE uint32_t collection_id(const uint8_t *p, uint32_t length, uint32_t *id) {
    uint64_t number = 0;
    if (length && p[0] < 0x80) {
        *id = p[0];
        return 1;
    }
    for (uint32_t i = 0; i < length && i < MAX_LEB128_BYTES; i++) {
        number |= (uint64_t)(p[i] & 0x7F) << (7 * i);
        if (p[i] < 0x80) {
            if ((p[i] == 0 && i) || number > UINT32_MAX) /* not the shortest form, or above 32 bits */
                return 0;
            *id = (uint32_t)number;
            return i + 1;
        }
    }
    return 0;
}

/* Copy a few bytes. `room` is what may be read and written from these places on: with enough of it, whole blocks are
 * copied, which saves the branches of an exact copy. */
INLINE void copy(uint8_t *to, const uint8_t *from, size_t length, size_t room) {
    if (length <= BLOCK * BLOCKS_MAX && room >= BLOCK * BLOCKS_MAX) {
        memcpy(to, from, BLOCK);
        if (length > BLOCK) {
            memcpy(to + BLOCK, from + BLOCK, BLOCK);
            if (length > 2 * BLOCK)
                memcpy(to + 2 * BLOCK, from + 2 * BLOCK, 2 * BLOCK);
        }
    } else if (length) {
        memcpy(to, from, length);
    }
}

INLINE size_t smaller(size_t left, size_t right) { return left < right ? left : right; }

/* --------------------------------------------------------------------------------------------------------- scan */

typedef struct {
    int64_t *starts; /* malloc'd */
    size_t count, room;
    Py_ssize_t end, fault;
    int64_t rows, key_bytes, value_bytes;
    int no_memory;
} Scan;

static void follow(const uint8_t *bytes, Py_ssize_t start, Py_ssize_t stop, Scan *scan) {
    Py_ssize_t at = start;
    while (stop - at >= HEADER_BYTES) {
        Head head;
        if (UNLIKELY(!read_head(bytes + at, &head))) {
            scan->fault = at;
            break;
        }
        Py_ssize_t after = at + HEADER_BYTES + head.body;
        if (after > stop)
            break;
        if (UNLIKELY(scan->count == scan->room)) {
            size_t room = scan->room ? scan->room * GROWTH : FIRST_STARTS;
            int64_t *larger = realloc(scan->starts, room * sizeof(int64_t));
            if (!larger) {
                scan->no_memory = 1;
                break;
            }
            scan->starts = larger;
            scan->room = room;
        }
        scan->starts[scan->count++] = at;
        if (is_data(&head)) {
            scan->rows++;
            scan->key_bytes += head.key;
            scan->value_bytes += head.body - head.framing - head.extras - head.key;
        }
        at = after;
    }
    scan->end = at;
}

const char kernel_scan_doc[] =
    "scan(buffer, start, stop) -> (starts, end, rows, key_bytes, value_bytes, fault)\n\n"
    "Follow and check the frames of buffer[start:stop].\n\n"
    "Returns: offsets of the whole frames as int64 in bytes; where the last one ends; the number of data messages, bytes\n"
    "of their key fields and of their values; the offset of a header that is none, or -1.";

PyObject *kernel_scan(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer buffer;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(arguments, "y*nn", &buffer, &start, &stop))
        return NULL;
    PyObject *result = NULL;
    Scan scan = {.fault = -1};
    if (start < 0 || stop < start || stop > buffer.len) {
        PyErr_SetString(PyExc_ValueError, "bounds outside of the buffer");
        goto done;
    }
    if (stop - start >= RELEASE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        follow(buffer.buf, start, stop, &scan);
        Py_END_ALLOW_THREADS
    } else {
        follow(buffer.buf, start, stop, &scan);
    }
    if (scan.no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    result = Py_BuildValue("y#nLLLn", scan.starts ? (const char *)scan.starts : "",
                           (Py_ssize_t)(scan.count * sizeof(int64_t)), scan.end, (long long)scan.rows,
                           (long long)scan.key_bytes, (long long)scan.value_bytes, scan.fault);
done:
    free(scan.starts);
    PyBuffer_Release(&buffer);
    return result;
}

/* ------------------------------------------------------------------------------------------------------- decode */

/* The columns of fixed width, in the order in which the caller gives them. */
enum { OPCODE, DATATYPE, VBUCKET, CAS, SEQNO, REV, FLAGS, EXPIRY, OPAQUE, COLLECTION, STREAM, COLUMNS };
static const size_t WIDTH[COLUMNS] = {1, 1, 2, 8, 8, 8, 4, 4, 4, 4, 2};

typedef struct {
    const uint8_t *bytes;
    size_t length;
    const uint8_t *starts; /* int64 each, not aligned */
    size_t frames;
    int collections, stream_ids;
    size_t rows; /* room for them in every column */
    void *column[COLUMNS];
    int32_t *key_offsets, *value_offsets;
    uint8_t *key, *value;
    size_t key_room, value_room;
    /* Results. */
    size_t others; /* frames that are no rows */
    Py_ssize_t fault;
    int is_wrong; /* the arguments do not fit each other */
} Decode;

/* Fill the columns, and count the frames that are no rows. */
static void fill(Decode *d) {
    uint8_t *const opcodes = d->column[OPCODE], *const datatypes = d->column[DATATYPE];
    uint16_t *const vbuckets = d->column[VBUCKET], *const stream_ids = d->column[STREAM];
    uint64_t *const cas = d->column[CAS], *const seqnos = d->column[SEQNO], *const revs = d->column[REV];
    uint32_t *const flags = d->column[FLAGS], *const expiries = d->column[EXPIRY], *const opaques = d->column[OPAQUE],
                    *const collections = d->column[COLLECTION];
    size_t row = 0, key_at = 0, value_at = 0;
    d->fault = -1;
    d->key_offsets[0] = d->value_offsets[0] = 0;
    for (size_t i = 0; i < d->frames; i++) {
        int64_t signed_at;
        memcpy(&signed_at, d->starts + i * sizeof(int64_t), sizeof(int64_t));
        size_t at = (size_t)signed_at;
        Head head;
        if (UNLIKELY(signed_at < 0 || at > d->length || d->length - at < HEADER_BYTES)) {
            d->is_wrong = 1;
            return;
        }
        const uint8_t *p = d->bytes + at;
        if (UNLIKELY(!read_head(p, &head) || d->length - at - HEADER_BYTES < head.body)) {
            d->is_wrong = 1;
            return;
        }
        if (UNLIKELY(!is_data(&head))) {
            d->others++;
            continue;
        }
        if (UNLIKELY(!extras_fit(&head))) {
            d->fault = (Py_ssize_t)at;
            return;
        }
        const uint8_t *extras = p + HEADER_BYTES + head.framing, *key = extras + head.extras;
        size_t value_length = head.body - head.framing - head.extras - head.key;
        const uint8_t *value = key + head.key;
        uint32_t key_length = head.key, collection = 0;
        if (d->collections) {
            uint32_t prefix = collection_id(key, key_length, &collection);
            if (UNLIKELY(!prefix)) {
                d->fault = (Py_ssize_t)at;
                return;
            }
            key += prefix;
            key_length -= prefix;
        }
        if (UNLIKELY(row == d->rows || key_length > d->key_room - key_at || value_length > d->value_room - value_at)) {
            d->is_wrong = 1;
            return;
        }
        if (d->stream_ids) {
            int32_t id = head.framing ? stream_id(p + HEADER_BYTES, head.framing) : 0;
            if (UNLIKELY(id < 0)) {
                d->fault = (Py_ssize_t)at;
                return;
            }
            stream_ids[row] = (uint16_t)id;
        }
        opcodes[row] = head.opcode;
        datatypes[row] = head.datatype;
        vbuckets[row] = u16_at(p + 6);
        opaques[row] = u32_at(p + 12);
        cas[row] = u64_at(p + 16);
        seqnos[row] = u64_at(extras);
        revs[row] = u64_at(extras + 8);
        collections[row] = collection;
        if (head.opcode == MUTATION) {
            flags[row] = u32_at(extras + 16);
            expiries[row] = u32_at(extras + 20);
        } else {
            flags[row] = 0;
            expiries[row] = head.extras >= EXPIRATION_EXTRAS ? u32_at(extras + 16) : 0;
        }
        size_t left = d->length - (size_t)(key - d->bytes);
        copy(d->key + key_at, key, key_length, smaller(left, d->key_room - key_at));
        key_at += key_length;
        left = d->length - (size_t)(value - d->bytes);
        copy(d->value + value_at, value, value_length, smaller(left, d->value_room - value_at));
        value_at += value_length;
        row++;
        d->key_offsets[row] = (int32_t)key_at;
        d->value_offsets[row] = (int32_t)value_at;
    }
    d->is_wrong = row != d->rows;
}

/* (rows before it, start) of each frame that is no row. */
static PyObject *others_of(const Decode *d) {
    PyObject *list = PyList_New(0);
    size_t row = 0, left = d->others;
    for (size_t i = 0; list && left && i < d->frames; i++) {
        int64_t at;
        Head head;
        memcpy(&at, d->starts + i * sizeof(int64_t), sizeof(int64_t));
        read_head(d->bytes + at, &head);
        if (is_data(&head)) {
            row++;
            continue;
        }
        PyObject *pair = Py_BuildValue("nL", (Py_ssize_t)row, (long long)at);
        if (!pair || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
        left--;
    }
    return list;
}

/* A writable buffer of at least `length` bytes, aligned for elements of `width` bytes; false with an error set. */
static int take_buffer(PyObject *object, Py_buffer *buffer, size_t length, size_t width) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE) < 0)
        return 0;
    if ((size_t)buffer->len < length || (length && (uintptr_t)buffer->buf % width)) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes instead of %zd, or not aligned", buffer->len,
                     (Py_ssize_t)length);
        PyBuffer_Release(buffer);
        return 0;
    }
    return 1;
}

const char kernel_decode_doc[] =
             "decode(buffer, starts, rows, collections, stream_ids, columns, key_offsets, key, value_offsets, value)\n"
             "    -> (fault, others)\n\n"
             "Fill the columns of the data messages among the frames that scan found in the buffer.\n\n"
             "Returns: the start of the first message that cannot be read, or -1; (rows before it, start) of each\n"
             "other frame.";

PyObject *kernel_decode(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer buffer, starts, key_offsets, key, value_offsets, value, columns[COLUMNS];
    PyObject *key_offsets_object, *key_object, *value_offsets_object, *value_object, *column_tuple, *result = NULL;
    Py_ssize_t rows, held = 0;
    int use_collections, use_stream_ids;
    if (!PyArg_ParseTuple(arguments, "y*y*nppO!OOOO", &buffer, &starts, &rows, &use_collections, &use_stream_ids,
                          &PyTuple_Type, &column_tuple, &key_offsets_object, &key_object, &value_offsets_object,
                          &value_object))
        return NULL;
    Decode d = {
        .bytes = buffer.buf,
        .length = (size_t)buffer.len,
        .starts = starts.buf,
        .frames = (size_t)starts.len / sizeof(int64_t),
        .collections = use_collections,
        .stream_ids = use_stream_ids,
        .rows = (size_t)rows,
    };
    const Py_ssize_t count = use_stream_ids ? COLUMNS : COLUMNS - 1;
    if (rows < 0 || rows > buffer.len || buffer.len > INT32_MAX || PyTuple_Size(column_tuple) != count) {
        PyErr_SetString(PyExc_ValueError, "a wrong number of rows, bytes or columns");
        goto release_input;
    }
    if (!take_buffer(key_offsets_object, &key_offsets, (d.rows + 1) * sizeof(int32_t), sizeof(int32_t)))
        goto release_input;
    if (!take_buffer(value_offsets_object, &value_offsets, (d.rows + 1) * sizeof(int32_t), sizeof(int32_t)))
        goto release_key_offsets;
    if (!take_buffer(key_object, &key, 0, 1))
        goto release_value_offsets;
    if (!take_buffer(value_object, &value, 0, 1))
        goto release_key;
    for (; held < count; held++) {
        PyObject *column = PyTuple_GetItem(column_tuple, held);
        if (!column || !take_buffer(column, &columns[held], d.rows * WIDTH[held], WIDTH[held]))
            goto release_columns;
        d.column[held] = columns[held].buf;
    }
    d.key_offsets = key_offsets.buf;
    d.value_offsets = value_offsets.buf;
    d.key = key.buf;
    d.value = value.buf;
    d.key_room = (size_t)key.len;
    d.value_room = (size_t)value.len;
    if (buffer.len >= RELEASE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        fill(&d);
        Py_END_ALLOW_THREADS
    } else {
        fill(&d);
    }
    if (d.fault < 0 && d.is_wrong) {
        PyErr_SetString(PyExc_ValueError, "the frames are not those that were scanned");
        goto release_columns;
    }
    PyObject *others = d.fault < 0 ? others_of(&d) : PyList_New(0);
    if (others)
        result = Py_BuildValue("nN", d.fault, others);
release_columns:
    while (held > 0)
        PyBuffer_Release(&columns[--held]);
    PyBuffer_Release(&value);
release_key:
    PyBuffer_Release(&key);
release_value_offsets:
    PyBuffer_Release(&value_offsets);
release_key_offsets:
    PyBuffer_Release(&key_offsets);
release_input:
    PyBuffer_Release(&starts);
    PyBuffer_Release(&buffer);
    return result;
}
