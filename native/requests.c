/* For dcpstream_node: answers plain GETs and SETs, as every client sends them, and writes the documents into the store.
 *
 * `answer` takes the requests at the start of some input until it meets one that needs more than this file knows. It
 * does to the objects of the node exactly what the handlers of GET and SET do (dcpstream_node.engine.handlers, with
 * `VBucketLog.append`, `RowTable.append` and `FrameLog.append` behind them). It works on those objects themselves, so
 * there is no second copy of any state.
 *
 * The caller holds the store's lock. Nothing here runs Python code that could change a vbucket meanwhile, so an object
 * stays where it was found, and references to it are not counted.
 */

#include "kernel.h"

#include <math.h>
#include <structmember.h>

enum {
    GET = 0x00,
    SET = 0x01,
    RESPONSE = 0x81,
    FLEXIBLE_RESPONSE = 0x18,
    KEY_ENOENT = 1,
    JSON = 1, /* datatypes */
    SNAPPY = 2,
    SET_EXTRAS = 8,
    FLAGS_BYTES = 4,
    TOKEN_BYTES = 16,
    STORED_HEAD = HEADER_BYTES + MUTATION_EXTRAS,
    FREQUENCY_OF_NEW = 2,
    MAX_KEY_BYTES = 250,
    MAX_VALUE_BYTES = 20 * 1024 * 1024,
    CHUNK_BYTES = 1024 * 1024, /* of a FrameLog: a longer tail is sealed first */
    RELATIVE_EXPIRY_MAX_S = 30 * 24 * 3600,
    KIND_SHIFT = 56,
    DELETED = 1 | 2,                     /* kinds of a row: deletion, expiration */
    XATTR = 4,
    COMPRESSED = 8,
    NOT_A_DOCUMENT = DELETED | 16 | 64,  /* system event, prepare */
    COMMIT = 128,
    FIRST_ROOM = 4096, /* bytes for answers at first */
    TRACE_BYTES = 3,   /* of framing extras: element 0 with two bytes, the duration of the request */
    TRACE = 0x02,
    GROUP = 16, /* requests whose objects are brought into the CPU's cache together, before they are answered */
    LINE_BYTES = 64,
    NEW_LINES = 6, /* of a small document's frame */
};

static const uint64_t POSITION_MASK = ((uint64_t)1 << KIND_SHIFT) - 1;
static const uint64_t CAS_COUNTER_MASK = 0xFFFF;
static const uint32_t UNTOLD_REVISION = 0xFFFFFFFF;
static const uint64_t SECOND_NS = 1000000000;
static const double DURATION_MAX_US = 120125042;

/* Classes of the node's objects, all with slots: node's VBucket, VBucketLog, RowTable, FrameLog. */
enum { VBUCKET, HISTORY, TABLE, FRAMES, CLASSES };

/* Their attributes. */
enum {
    IS_ACTIVE,
    IS_BACKED_UP,
    LOCKS,
    DURABILITY,
    LOG,
    MAX_CAS,
    MAX_DELETED_REV,
    VBUUID,
    ROWS,
    HIGH_SEQNO,
    KEYS,
    SEQNOS,
    POSITIONS,
    SUCCESSORS,
    TIMES,
    REVISIONS,
    END,
    ITEM_COUNT,
    STALE_BYTES,
    JOURNAL,
    COLLECTION_HIGH,
    TAIL,
    TAIL_START,
    SEALED,
    NAMES,
};
static const char *const NAME[NAMES] = {
    "is_active", "is_backed_up", "locks",       "durability", "log",     "max_cas", "max_deleted_rev", "vbuuid",
    "rows",      "high_seqno",   "keys",        "seqnos",     "positions", "successors", "times",      "revisions",
    "end",       "item_count",   "stale_bytes", "journal",    "collection_high", "tail", "tail_start", "sealed",
};
/* The class of an attribute; a `log` is one of two. */
INLINE int class_of(int name) {
    return name < ROWS ? VBUCKET : name < KEYS ? HISTORY : name < TAIL ? TABLE : FRAMES;
}

/* Where the objects of a class keep the attributes. */
typedef struct {
    PyTypeObject *type; /* owned; NULL before the first object */
    Py_ssize_t places[NAMES];
    Py_ssize_t bytes; /* of an object */
} Slots;

typedef struct {
    Slots slots[CLASSES];
    PyObject *append;     /* array.array.append */
    PyObject *live, *zero; /* numbers: `LIVE`, and the id of the default collection */
} State;

size_t requests_state_bytes(void) { return sizeof(State); }

int requests_begin(PyObject *module) {
    State *state = PyModule_GetState(module);
    PyObject *arrays = PyImport_ImportModule("array");
    PyObject *type = arrays ? PyObject_GetAttrString(arrays, "array") : NULL;
    state->append = type ? PyObject_GetAttrString(type, "append") : NULL;
    Py_XDECREF(type);
    Py_XDECREF(arrays);
    state->live = PyLong_FromUnsignedLongLong(UINT64_MAX);
    state->zero = PyLong_FromLong(0);
    return state->append && state->live && state->zero ? 0 : -1;
}

void requests_end(PyObject *module) {
    State *state = PyModule_GetState(module);
    if (!state)
        return;
    for (int i = 0; i < CLASSES; i++)
        Py_CLEAR(state->slots[i].type);
    Py_CLEAR(state->append);
    Py_CLEAR(state->live);
    Py_CLEAR(state->zero);
}

/* ----------------------------------------------------------------------------------------------------- attributes */

/* Find out where the objects of a class keep their slots. The class says it itself, in its members. */
static int learn(Slots *slots, PyTypeObject *type) {
    for (int name = 0; name < NAMES; name++)
        slots->places[name] = 0;
    for (PyTypeObject *at = type; at; at = PyType_GetSlot(at, Py_tp_base)) {
        if (!(PyType_GetFlags(at) & Py_TPFLAGS_HEAPTYPE))
            break;
        for (const PyMemberDef *member = PyType_GetSlot(at, Py_tp_members); member && member->name; member++)
            for (int name = 0; name < NAMES; name++)
                if (member->type == T_OBJECT_EX && !slots->places[name] && !strcmp(member->name, NAME[name]))
                    slots->places[name] = member->offset;
    }
    PyObject *bytes = PyObject_GetAttrString((PyObject *)type, "__basicsize__");
    slots->bytes = bytes ? PyLong_AsSsize_t(bytes) : -1;
    Py_XDECREF(bytes);
    if (slots->bytes < 0)
        return -1;
    PyObject *before = (PyObject *)slots->type;
    slots->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    Py_XDECREF(before);
    return 0;
}

/* Where an object keeps an attribute, which the caller takes for one of its class; NULL with an error if it is not. */
static PyObject **place_of(State *state, PyObject *object, int class, int name) {
    Slots *slots = &state->slots[class];
    if (UNLIKELY(Py_TYPE(object) != slots->type) && learn(slots, Py_TYPE(object)) < 0)
        return NULL;
    PyObject **place = (PyObject **)((char *)object + slots->places[name]);
    if (UNLIKELY(!slots->places[name] || !*place)) {
        PyErr_Format(PyExc_AttributeError, "no slot has %s", NAME[name]);
        return NULL;
    }
    return place;
}

/* An attribute; the object holds the reference. */
static PyObject *get_of(State *state, PyObject *object, int class, int name) {
    PyObject **place = place_of(state, object, class, name);
    return place ? *place : NULL;
}

static PyObject *get(State *state, PyObject *object, int name) {
    return get_of(state, object, class_of(name), name);
}

/* An attribute that must be of one kind; it is read as memory. */
static PyObject *get_checked(State *state, PyObject *object, int name, int is_right(PyObject *)) {
    PyObject *found = get(state, object, name);
    if (found && !is_right(found)) {
        PyErr_Format(PyExc_TypeError, "%s is of the wrong kind", NAME[name]);
        return NULL;
    }
    return found;
}

static int is_dict(PyObject *object) { return PyDict_Check(object); }
static int is_bytearray(PyObject *object) { return PyByteArray_Check(object); }
static int is_list(PyObject *object) { return PyList_Check(object); }

static int get_number(State *state, PyObject *object, int name, uint64_t *number) {
    PyObject *found = get(state, object, name);
    if (!found)
        return -1;
    *number = PyLong_AsUnsignedLongLong(found);
    return *number == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

/* Set an attribute; takes over the reference. */
static int set(State *state, PyObject *object, int name, PyObject *value) {
    PyObject **place = value ? place_of(state, object, class_of(name), name) : NULL;
    if (!place) {
        Py_XDECREF(value);
        return -1;
    }
    PyObject *before = *place;
    *place = value;
    Py_DECREF(before); /* a number */
    return 0;
}

static int set_number(State *state, PyObject *object, int name, uint64_t number) {
    return set(state, object, name, PyLong_FromUnsignedLongLong(number));
}

static int append(State *state, PyObject *rows, int name, PyObject *number) {
    PyObject *column = get(state, rows, name);
    PyObject *none = column ? PyObject_CallFunctionObjArgs(state->append, column, number, NULL) : NULL;
    Py_XDECREF(none);
    return none ? 0 : -1;
}

static int append_number(State *state, PyObject *rows, int name, uint64_t number) {
    PyObject *made = PyLong_FromUnsignedLongLong(number);
    int status = made ? append(state, rows, name, made) : -1;
    Py_XDECREF(made);
    return status;
}

/* A column of rows as memory; the caller releases it. */
static int open_column(State *state, PyObject *rows, int name, Py_ssize_t width, Py_buffer *column) {
    PyObject *found = get(state, rows, name);
    if (!found || PyObject_GetBuffer(found, column, PyBUF_WRITABLE) < 0)
        return -1;
    if (column->len % width == 0)
        return 0;
    PyBuffer_Release(column);
    PyErr_Format(PyExc_TypeError, "%s has other items", NAME[name]);
    return -1;
}

/* --------------------------------------------------------------------------------------------------------- state */

/* What `answer` was given, and what it made. */
typedef struct {
    State *state;
    const uint8_t *data;
    size_t length, at;
    PyObject *vbuckets, *dirty, *pending; /* `pending` is None for a store that is in memory only */
    PyObject *stopwatch;                  /* gives seconds; None unless answers have the duration of the request */
    int takes_gets, takes_sets, has_collections, has_tokens;
    uint8_t datatypes;
    double ratio_min; /* inflated to compressed size from which a value is kept compressed; negative for never */
    uint64_t unix_ns;
    uint8_t *inflated; /* malloc'd: the value of the present request */
    size_t inflated_room;
    uint8_t *out; /* malloc'd */
    size_t out_bytes, out_room;
    unsigned long long gets, sets, stored_bytes;
} Batch;

/* One request, whose parts all lie in the input. */
typedef struct {
    uint8_t opcode, extras_length, datatype;
    uint16_t key_length, vbid;
    const uint8_t *extras, *key, *value;
    size_t value_length;
    uint32_t opaque;
    uint64_t cas;
} Request;

/* What a request came to. */
enum { FAILED = -1, LEFT, DONE };

static uint8_t *room(Batch *batch, size_t bytes) {
    if (batch->out_room - batch->out_bytes < bytes) {
        size_t wanted = (batch->out_bytes + bytes) * 2;
        if (wanted < FIRST_ROOM)
            wanted = FIRST_ROOM;
        uint8_t *larger = realloc(batch->out, wanted);
        if (!larger) {
            PyErr_NoMemory();
            return NULL;
        }
        batch->out = larger;
        batch->out_room = wanted;
    }
    uint8_t *place = batch->out + batch->out_bytes;
    batch->out_bytes += bytes;
    return place;
}

/* The head of an answer; the caller fills the extras and the value. */
static uint8_t *answer_head(Batch *batch, const Request *request, uint16_t status, uint8_t extras, uint8_t datatype,
                            size_t value_length, uint64_t cas) {
    const size_t framing = batch->stopwatch == Py_None ? 0 : TRACE_BYTES;
    uint8_t *p = room(batch, HEADER_BYTES + framing + extras + value_length);
    if (!p)
        return NULL;
    memset(p, 0, HEADER_BYTES);
    p[0] = framing ? FLEXIBLE_RESPONSE : RESPONSE;
    p[1] = request->opcode;
    p[2] = (uint8_t)framing;
    p[4] = extras;
    p[5] = datatype;
    put_u16(p + 6, status);
    put_u32(p + 8, (uint32_t)(framing + extras + value_length));
    put_u32(p + 12, request->opaque);
    put_u64(p + 16, cas);
    return p + HEADER_BYTES + framing;
}

/* The time of the stopwatch, in seconds; negative after an error. */
static double seconds(const Batch *batch) {
    PyObject *answer = PyObject_CallNoArgs(batch->stopwatch);
    double now = answer ? PyFloat_AsDouble(answer) : -1;
    Py_XDECREF(answer);
    return PyErr_Occurred() ? -1 : now;
}

/* Write the duration of a request into its answer, as `pack_duration` does (dcpstream_node.engine.session.responses). */
static void put_duration(uint8_t *answer, double duration) {
    double us = duration * 1e6;
    us = us < 0 ? 0 : us > DURATION_MAX_US ? DURATION_MAX_US : us;
    answer[HEADER_BYTES] = TRACE;
    put_u16(answer + HEADER_BYTES + 1, (uint16_t)(pow(2 * us, 1 / 1.74) + 0.5));
}

/* The request at `batch->at`; false if it is not whole, or not well-formed. */
static int read_request(const Batch *batch, Request *request) {
    const uint8_t *p = batch->data + batch->at;
    size_t left = batch->length - batch->at;
    if (left < HEADER_BYTES || p[0] != REQUEST || (p[1] != GET && p[1] != SET))
        return 0;
    request->opcode = p[1];
    request->key_length = u16_at(p + 2);
    request->extras_length = p[4];
    request->datatype = p[5];
    request->vbid = u16_at(p + 6);
    request->opaque = u32_at(p + 12);
    request->cas = u64_at(p + 16);
    size_t body = u32_at(p + 8), before = (size_t)request->extras_length + request->key_length;
    if (left - HEADER_BYTES < body || before > body)
        return 0;
    request->extras = p + HEADER_BYTES;
    request->key = request->extras + request->extras_length;
    request->value = request->key + request->key_length;
    request->value_length = body - before;
    return 1;
}

/* The key with the prefix of the default collection, a new reference; NULL without an error if it is another one. */
static PyObject *key_of(const Batch *batch, const Request *request) {
    if (batch->has_collections) {
        if (request->key_length < 2 || request->key_length > MAX_KEY_BYTES + 1 || request->key[0])
            return NULL;
        return PyBytes_FromStringAndSize((const char *)request->key, request->key_length);
    }
    if (!request->key_length || request->key_length > MAX_KEY_BYTES)
        return NULL;
    PyObject *key = PyBytes_FromStringAndSize(NULL, request->key_length + 1);
    if (key) {
        char *bytes = PyBytes_AsString(key);
        bytes[0] = 0;
        memcpy(bytes + 1, request->key, request->key_length);
    }
    return key;
}

/* The vbucket of a request, if it is active here and its documents have no locks and no durable writes. */
static int find_vbucket(const Batch *batch, const Request *request, PyObject **vbucket) {
    State *state = batch->state;
    if (request->vbid >= PyList_Size(batch->vbuckets))
        return LEFT;
    PyObject *found = PyList_GetItem(batch->vbuckets, request->vbid);
    if (!found)
        return FAILED;
    if (found == Py_None)
        return LEFT;
    PyObject *is_active = get(state, found, IS_ACTIVE);
    PyObject *is_backed_up = is_active ? get(state, found, IS_BACKED_UP) : NULL;
    PyObject *locks = is_backed_up ? get_checked(state, found, LOCKS, is_dict) : NULL;
    PyObject *durability = locks ? get(state, found, DURABILITY) : NULL;
    if (!durability)
        return FAILED;
    *vbucket = found;
    int is_plain = is_active == Py_True && !PyDict_Size(locks) && durability == Py_None;
    return is_plain && (request->opcode == GET || is_backed_up == Py_False) ? DONE : LEFT;
}

/* The row with a seqno, which exists. */
static size_t row_of(const uint64_t *seqnos, size_t count, uint64_t seqno) {
    size_t last = count - 1, low = 0, high = count;
    /* If no seqno is missing between this one and the last, the row is known without a search. */
    if (seqno <= seqnos[last] && seqnos[last] - seqno <= last && seqnos[last - (seqnos[last] - seqno)] == seqno)
        return last - (size_t)(seqnos[last] - seqno);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (seqnos[middle] < seqno)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ----------------------------------------------------------------------------------------------------------- GET */

/* Answer with the frame of a document at `place` of a buffer. */
static int show(Batch *batch, const Request *request, PyObject *buffer, uint64_t place) {
    Py_buffer bytes;
    int status = LEFT;
    if (PyObject_GetBuffer(buffer, &bytes, PyBUF_SIMPLE) < 0)
        return FAILED;
    if (place > (uint64_t)bytes.len || (uint64_t)bytes.len - place < STORED_HEAD)
        goto done;
    const uint8_t *frame = (const uint8_t *)bytes.buf + place;
    size_t body = u32_at(frame + 8), before = MUTATION_EXTRAS + (size_t)u16_at(frame + 2);
    if (frame[1] != MUTATION || (uint64_t)bytes.len - place - HEADER_BYTES < body || before > body ||
        u32_at(frame + HEADER_BYTES + 20)) /* it may have expired */
        goto done;
    uint8_t *p = answer_head(batch, request, 0, FLAGS_BYTES, frame[5] & batch->datatypes, body - before,
                             u64_at(frame + 16));
    status = FAILED;
    if (p) {
        memcpy(p, frame + HEADER_BYTES + 16, FLAGS_BYTES);
        memcpy(p + FLAGS_BYTES, frame + HEADER_BYTES + before, body - before);
        status = DONE;
    }
done:
    PyBuffer_Release(&bytes);
    return status;
}

/* The sealed buffer that holds a position, borrowed, and the offset in it; NULL without an error if it is in a file. */
static PyObject *sealed_at(State *state, PyObject *frames, uint64_t position, uint64_t *place) {
    PyObject *sealed = get_checked(state, frames, SEALED, is_list);
    if (!sealed)
        return NULL;
    Py_ssize_t low = 0, high = PyList_Size(sealed);
    PyObject *found = NULL;
    while (low < high) { /* the last one that begins at or before the position */
        Py_ssize_t middle = low + (high - low) / 2;
        PyObject *pair = PyList_GetItem(sealed, middle), *start = pair ? PyTuple_GetItem(pair, 0) : NULL;
        uint64_t begin = start ? PyLong_AsUnsignedLongLong(start) : UINT64_MAX;
        if (begin == UINT64_MAX && PyErr_Occurred())
            return NULL;
        if (begin <= position) {
            found = PyTuple_GetItem(pair, 1);
            *place = position - begin;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return found;
}

static int get_document(Batch *batch, const Request *request, PyObject *vbucket, PyObject *key) {
    State *state = batch->state;
    PyObject *log = get(state, vbucket, LOG), *rows = log ? get(state, log, ROWS) : NULL;
    PyObject *keys = rows ? get_checked(state, rows, KEYS, is_dict) : NULL;
    if (!keys)
        return FAILED;
    PyObject *known = PyDict_GetItemWithError(keys, key);
    if (!known) {
        if (PyErr_Occurred())
            return FAILED;
        return answer_head(batch, request, KEY_ENOENT, 0, 0, 0, 0) ? DONE : FAILED;
    }
    uint64_t seqno = PyLong_AsUnsignedLongLong(known), tagged, tail_start;
    if (seqno == UINT64_MAX && PyErr_Occurred())
        return FAILED;
    Py_buffer seqnos, positions;
    if (open_column(state, rows, SEQNOS, 8, &seqnos) < 0)
        return FAILED;
    if (open_column(state, rows, POSITIONS, 8, &positions) < 0) {
        PyBuffer_Release(&seqnos);
        return FAILED;
    }
    size_t count = (size_t)seqnos.len / 8, row = count ? row_of(seqnos.buf, count, seqno) : 0;
    int is_there = row < count && positions.len == seqnos.len;
    tagged = is_there ? ((const uint64_t *)positions.buf)[row] : 0;
    PyBuffer_Release(&positions);
    PyBuffer_Release(&seqnos);
    if (!is_there || tagged >> KIND_SHIFT & ~(uint64_t)(COMMIT | (batch->datatypes & SNAPPY ? COMPRESSED : 0)))
        return LEFT;
    uint64_t position = tagged & POSITION_MASK, place;
    PyObject *frames = get_of(state, log, HISTORY, LOG);
    if (!frames || get_number(state, frames, TAIL_START, &tail_start) < 0)
        return FAILED;
    PyObject *buffer;
    if (position >= tail_start) {
        buffer = get_checked(state, frames, TAIL, is_bytearray);
        place = position - tail_start;
    } else {
        buffer = sealed_at(state, frames, position, &place);
    }
    if (!buffer)
        return PyErr_Occurred() ? FAILED : LEFT;
    return show(batch, request, buffer, place);
}

/* ----------------------------------------------------------------------------------------------------------- SET */

/* What a document replaces. */
typedef struct {
    int is_there, was_document;
    size_t row;
    uint64_t seqno, bytes, revision;
} Replaced;

/* Inflate a request's value into `batch->inflated`; LEFT if it is not sound, or large, or empty: what becomes of an empty
 * one depends on the release. */
static int inflate(Batch *batch, const Request *request, size_t *length) {
    const int64_t size = snappy_length(request->value, request->value_length);
    if (size <= 0 || size > CHUNK_BYTES)
        return LEFT;
    if ((size_t)size > batch->inflated_room || !batch->inflated) {
        free(batch->inflated);
        batch->inflated_room = (size_t)size * 2 + FIRST_ROOM;
        batch->inflated = malloc(batch->inflated_room);
        if (!batch->inflated) {
            batch->inflated_room = 0;
            PyErr_NoMemory();
            return FAILED;
        }
    }
    *length = (size_t)size;
    return snappy_inflate(request->value, request->value_length, batch->inflated, *length) ? DONE : LEFT;
}

/* Find what a key's new version replaces; LEFT if that takes more than a plain write. */
static int find_replaced(const Batch *batch, PyObject *rows, PyObject *known, Replaced *replaced) {
    State *state = batch->state;
    Py_buffer column[4]; /* seqnos, positions, revisions, times */
    static const int names[] = {SEQNOS, POSITIONS, REVISIONS, TIMES}, widths[] = {8, 8, 4, 4};
    int held = 0, status = FAILED;
    uint64_t end;
    replaced->seqno = PyLong_AsUnsignedLongLong(known);
    if ((replaced->seqno == UINT64_MAX && PyErr_Occurred()) || get_number(state, rows, END, &end) < 0)
        return FAILED;
    for (; held < 4; held++)
        if (open_column(state, rows, names[held], widths[held], &column[held]) < 0)
            goto done;
    size_t count = (size_t)column[0].len / 8, row = count ? row_of(column[0].buf, count, replaced->seqno) : 0;
    status = LEFT;
    for (int i = 0; i < 4; i++)
        if ((size_t)column[i].len / (size_t)widths[i] != count)
            goto done;
    if (row >= count)
        goto done;
    const uint64_t *positions = column[1].buf;
    uint64_t tagged = positions[row], kinds = tagged >> KIND_SHIFT;
    uint32_t revision = ((const uint32_t *)column[2].buf)[row], time = ((const uint32_t *)column[3].buf)[row];
    if (revision == UNTOLD_REVISION)
        goto done;
    if (!(kinds & DELETED) && (kinds & XATTR || (time && time <= batch->unix_ns / SECOND_NS)))
        goto done;
    replaced->is_there = 1;
    replaced->was_document = !(kinds & NOT_A_DOCUMENT);
    replaced->row = row;
    replaced->revision = revision;
    replaced->bytes = ((row + 1 < count ? positions[row + 1] : end) - tagged) & POSITION_MASK;
    status = DONE;
done:
    while (held > 0)
        PyBuffer_Release(&column[--held]);
    return status;
}

/* Note that a row was superseded. */
static int supersede(State *state, PyObject *rows, const Replaced *replaced, PyObject *old, uint64_t seqno) {
    Py_buffer successors;
    uint64_t stale;
    if (open_column(state, rows, SUCCESSORS, 8, &successors) < 0)
        return -1;
    if (replaced->row < (size_t)successors.len / 8)
        ((uint64_t *)successors.buf)[replaced->row] = seqno;
    PyBuffer_Release(&successors);
    PyObject *journal = get(state, rows, JOURNAL);
    if (!journal || get_number(state, rows, STALE_BYTES, &stale) < 0 ||
        set_number(state, rows, STALE_BYTES, stale + replaced->bytes) < 0)
        return -1;
    return journal == Py_None ? 0 : PyList_Append(journal, old);
}

/* Add the row of a document. */
static int add_row(State *state, PyObject *rows, uint64_t seqno, uint64_t position, uint32_t time, uint64_t revision) {
    if (append_number(state, rows, SEQNOS, seqno) < 0 || append_number(state, rows, POSITIONS, position) < 0 ||
        append(state, rows, SUCCESSORS, state->live) < 0 || append_number(state, rows, TIMES, time) < 0)
        return -1;
    return append_number(state, rows, REVISIONS, revision < UNTOLD_REVISION ? revision : UNTOLD_REVISION);
}

static int set_document(Batch *batch, const Request *request, PyObject *vbucket, PyObject *key) {
    State *state = batch->state;
    PyObject *log = get(state, vbucket, LOG), *rows = log ? get(state, log, ROWS) : NULL;
    PyObject *frames = rows ? get_of(state, log, HISTORY, LOG) : NULL;
    PyObject *keys = frames ? get_checked(state, rows, KEYS, is_dict) : NULL;
    PyObject *tail = keys ? get_checked(state, frames, TAIL, is_bytearray) : NULL;
    PyObject *high = tail ? get_checked(state, rows, COLLECTION_HIGH, is_dict) : NULL;
    uint64_t last_cas, high_seqno, max_deleted_rev, end, item_count, vbuuid = 0;
    if (!high || get_number(state, vbucket, MAX_CAS, &last_cas) < 0 ||
        get_number(state, log, HIGH_SEQNO, &high_seqno) < 0 || get_number(state, rows, END, &end) < 0 ||
        get_number(state, rows, ITEM_COUNT, &item_count) < 0 ||
        (batch->has_tokens && get_number(state, vbucket, VBUUID, &vbuuid) < 0))
        return FAILED;
    if (!last_cas && high_seqno)
        return LEFT; /* the last CAS is in the log */
    const uint8_t *value = request->value; /* as it is stored */
    size_t value_length = request->value_length;
    uint8_t datatype = 0, kinds = 0;
    if (request->datatype & SNAPPY) {
        int status = inflate(batch, request, &value_length);
        if (status != DONE)
            return status;
        value = batch->inflated;
    }
    if (value_length) {
        int is_json = json_text(value, value_length);
        if (is_json == TOO_DEEP)
            return LEFT;
        datatype = is_json == IS_JSON ? JSON : 0;
    }
    if (request->datatype & SNAPPY && batch->ratio_min >= 0 &&
        (double)value_length >= (double)request->value_length * batch->ratio_min) {
        value = request->value;
        value_length = request->value_length;
        datatype |= SNAPPY;
        kinds = COMPRESSED;
    }
    const Py_ssize_t tail_bytes = PyByteArray_Size(tail), key_length = PyBytes_Size(key);
    const size_t size = STORED_HEAD + (size_t)key_length + value_length;
    if ((size_t)tail_bytes + size > CHUNK_BYTES)
        return LEFT; /* the tail is sealed first */
    Replaced replaced = {0};
    uint64_t revision;
    PyObject *known = PyDict_GetItemWithError(keys, key);
    if (known) {
        int status = find_replaced(batch, rows, known, &replaced);
        if (status != DONE)
            return status;
        revision = replaced.revision + 1;
    } else {
        if (PyErr_Occurred() || get_number(state, vbucket, MAX_DELETED_REV, &max_deleted_rev) < 0)
            return FAILED;
        revision = max_deleted_rev + 1;
    }
    uint64_t seqno = high_seqno + 1, cas = batch->unix_ns & ~CAS_COUNTER_MASK;
    if (cas <= last_cas)
        cas = last_cas + 1;
    uint32_t expiration = u32_at(request->extras + 4);
    if (expiration && expiration <= RELATIVE_EXPIRY_MAX_S)
        expiration += (uint32_t)(batch->unix_ns / SECOND_NS);
    else if (expiration && expiration <= batch->unix_ns / SECOND_NS)
        return LEFT; /* it may be before the start of the node */

    /* From here on the request is carried out. The first step is the one that can fail for want of memory. */
    PyObject *number = PyLong_FromUnsignedLongLong(seqno), *vbid = PyLong_FromLong(request->vbid);
    uint8_t *p = answer_head(batch, request, 0, batch->has_tokens ? TOKEN_BYTES : 0, 0, 0, cas);
    int status = FAILED;
    if (!number || !vbid || !p || PyByteArray_Resize(tail, tail_bytes + (Py_ssize_t)size) < 0)
        goto done;
    if (batch->has_tokens) {
        put_u64(p, vbuuid);
        put_u64(p + 8, seqno);
    }
    uint8_t *frame = (uint8_t *)PyByteArray_AsString(tail) + tail_bytes;
    memset(frame, 0, STORED_HEAD);
    frame[0] = REQUEST;
    frame[1] = MUTATION;
    put_u16(frame + 2, (uint16_t)key_length);
    frame[4] = MUTATION_EXTRAS;
    frame[5] = datatype;
    put_u16(frame + 6, request->vbid);
    put_u32(frame + 8, (uint32_t)(size - HEADER_BYTES));
    put_u64(frame + 16, cas);
    put_u64(frame + 24, seqno);
    put_u64(frame + 32, revision);
    memcpy(frame + 40, request->extras, 4);
    put_u32(frame + 44, expiration);
    frame[STORED_HEAD - 1] = FREQUENCY_OF_NEW;
    memcpy(frame + STORED_HEAD, PyBytes_AsString(key), (size_t)key_length);
    memcpy(frame + STORED_HEAD + key_length, value, value_length);

    if (known && supersede(state, rows, &replaced, known, seqno) < 0)
        goto done;
    const uint64_t position = (uint64_t)kinds << KIND_SHIFT | end;
    if (PyDict_SetItem(keys, key, number) < 0 || add_row(state, rows, seqno, position, expiration, revision) < 0 ||
        set_number(state, rows, END, end + size) < 0 ||
        (!replaced.was_document && set_number(state, rows, ITEM_COUNT, item_count + 1) < 0) ||
        PyDict_SetItem(high, state->zero, number) < 0 ||
        set(state, log, HIGH_SEQNO, Py_NewRef(number)) < 0 || set_number(state, vbucket, MAX_CAS, cas) < 0 ||
        PySet_Add(batch->dirty, vbid) < 0)
        goto done;
    if (batch->pending != Py_None && PyDict_SetItem(batch->pending, vbid, log) < 0)
        goto done;
    batch->stored_bytes += size;
    status = DONE;
done:
    Py_XDECREF(number);
    Py_XDECREF(vbid);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- answer */

static int answer_one(Batch *batch, const Request *request) {
    if (request->cas)
        return LEFT;
    if (request->opcode == GET) {
        if (!batch->takes_gets || request->extras_length || request->datatype || request->value_length)
            return LEFT;
    } else if (!batch->takes_sets || request->extras_length != SET_EXTRAS ||
               request->datatype & ~(batch->datatypes & (JSON | SNAPPY)) ||
               request->value_length > MAX_VALUE_BYTES) {
        return LEFT;
    }
    PyObject *vbucket;
    int status = find_vbucket(batch, request, &vbucket);
    if (status != DONE)
        return status;
    PyObject *key = key_of(batch, request);
    if (!key)
        return PyErr_Occurred() ? FAILED : LEFT;
    status = (request->opcode == GET ? get_document : set_document)(batch, request, vbucket, key);
    Py_DECREF(key);
    if (status == DONE) {
        if (request->opcode == GET)
            batch->gets++;
        else
            batch->sets++;
        batch->at = (size_t)(request->value + request->value_length - batch->data);
    }
    return status;
}

/* As `answer_one`; if the client asks for it, the answer has the duration of the request. */
static int answer_traced(Batch *batch, const Request *request) {
    const size_t before = batch->out_bytes;
    const double began = seconds(batch);
    if (began < 0)
        return FAILED;
    int status = answer_one(batch, request);
    if (status == DONE) {
        const double ended = seconds(batch);
        if (ended < 0)
            return FAILED;
        put_duration(batch->out + before, ended - began);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------ look ahead
 *
 * The vbuckets of a node have more memory than the CPU's cache, and clients write to all of them. So almost every
 * object that a request needs must be fetched from main memory, one after the other, because each knows where the next
 * one is. For a group of requests these chains are followed side by side beforehand. This changes nothing but the time.
 */

/* Fetch an object into the cache. */
INLINE void fetch(const void *object, size_t bytes) {
    for (size_t at = 0; object && at < bytes; at += LINE_BYTES)
        PREFETCH((const char *)object + at);
}

/* An attribute of an object whose class is known already; else NULL. */
INLINE PyObject *peek(const State *state, PyObject *object, int class, int name) {
    const Slots *slots = &state->slots[class];
    if (!object || Py_TYPE(object) != slots->type || !slots->places[name])
        return NULL;
    return *(PyObject **)((char *)object + slots->places[name]);
}

/* Fetch the places of a table's columns that a request reads and writes: their ends, and the row of the old version. */
static void fetch_rows(const Batch *batch, const Request *request, PyObject *history, PyObject *table) {
    static const int names[] = {SEQNOS, POSITIONS, SUCCESSORS, TIMES, REVISIONS};
    static const size_t widths[] = {8, 8, 8, 4, 4};
    PyObject *keys = peek(batch->state, table, TABLE, KEYS), *high = peek(batch->state, history, HISTORY, HIGH_SEQNO);
    PyObject *key = keys && high && PyDict_Check(keys) ? key_of(batch, request) : NULL;
    PyObject *known = key ? PyDict_GetItemWithError(keys, key) : NULL;
    const uint64_t after = known ? PyLong_AsUnsignedLongLong(high) - PyLong_AsUnsignedLongLong(known) : 0;
    for (size_t i = 0; key && i < sizeof names / sizeof *names; i++) {
        Py_buffer column;
        PyObject *found = peek(batch->state, table, TABLE, names[i]);
        if (!found || PyObject_GetBuffer(found, &column, PyBUF_SIMPLE) < 0)
            break;
        const char *end = (const char *)column.buf + column.len;
        PREFETCH(end);
        /* If no seqno is missing since the old version, its row is known without a search. */
        if (known && after < (size_t)column.len / widths[i])
            PREFETCH(end - (after + 1) * widths[i]);
        PyBuffer_Release(&column);
    }
    Py_XDECREF(key);
    PyErr_Clear(); /* the request itself meets the error again */
}

/* Fetch what the next requests need; returns how many they are. */
static int look_ahead(const Batch *batch) {
    const State *state = batch->state;
    const Py_ssize_t vbuckets = PyList_Size(batch->vbuckets);
    PyObject *vbucket[GROUP], *history[GROUP], *table[GROUP], *frames[GROUP];
    Request request[GROUP];
    Batch next = *batch;
    int count = 0, i;
    while (count < GROUP && read_request(&next, &request[count]) && request[count].vbid < vbuckets) {
        const Request *read = &request[count];
        vbucket[count] = PyList_GetItem(batch->vbuckets, read->vbid);
        fetch(vbucket[count++], (size_t)state->slots[VBUCKET].bytes);
        next.at = (size_t)(read->value + read->value_length - batch->data);
    }
    for (i = 0; i < count; i++) {
        history[i] = peek(state, vbucket[i], VBUCKET, LOG);
        fetch(history[i], (size_t)state->slots[HISTORY].bytes);
        fetch(peek(state, vbucket[i], VBUCKET, LOCKS), 1);
        fetch(peek(state, vbucket[i], VBUCKET, MAX_CAS), 1);
    }
    for (i = 0; i < count; i++) {
        table[i] = peek(state, history[i], HISTORY, ROWS);
        frames[i] = peek(state, history[i], HISTORY, LOG);
        fetch(table[i], (size_t)state->slots[TABLE].bytes);
        fetch(frames[i], (size_t)state->slots[FRAMES].bytes);
        fetch(peek(state, history[i], HISTORY, HIGH_SEQNO), 1);
    }
    for (i = 0; i < count; i++) {
        static const int parts[] = {KEYS, SEQNOS, POSITIONS, SUCCESSORS, TIMES, REVISIONS, END, STALE_BYTES};
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
            fetch(peek(state, table[i], TABLE, parts[part]), 1);
        fetch(peek(state, frames[i], FRAMES, TAIL), 1);
    }
    for (i = 0; i < count; i++) {
        PyObject *tail = peek(state, frames[i], FRAMES, TAIL);
        if (tail && PyByteArray_Check(tail))
            fetch(PyByteArray_AsString(tail) + PyByteArray_Size(tail), NEW_LINES * LINE_BYTES);
    }
    for (i = 0; i < count; i++)
        fetch_rows(batch, &request[i], history[i], table[i]);
    return count;
}

/* ----------------------------------------------------------------------------------------------------- all of them */

const char kernel_answer_doc[] =
    "answer(data, at, vbuckets, dirty, pending, stopwatch, takes_gets, takes_sets, has_collections, has_tokens,\n"
    "       datatypes, ratio_min, unix_ns, limit) -> (at, answers, gets, sets, stored_bytes)\n\n"
    "Answer the plain GETs and SETs in data[at:] until another request comes, or the answers have `limit` bytes.\n"
    "`stopwatch` gives seconds; with it, answers have the duration of their request. Values that come compressed stay so\n"
    "if their inflated size is at least `ratio_min` times as much; if that is negative, never.\n\n"
    "Returns: where the first request begins that is not answered; the answers; the number of GETs and of SETs; bytes\n"
    "that were written to the store.";

PyObject *kernel_answer(PyObject *module, PyObject *arguments) {
    Batch batch = {.state = PyModule_GetState(module)};
    PyObject *data, *result = NULL;
    char *bytes;
    Py_ssize_t at, limit, length;
    unsigned long long unix_ns;
    if (!PyArg_ParseTuple(arguments, "SnOOOOppppbdKn", &data, &at, &batch.vbuckets, &batch.dirty, &batch.pending,
                          &batch.stopwatch, &batch.takes_gets, &batch.takes_sets, &batch.has_collections, &batch.has_tokens,
                          &batch.datatypes, &batch.ratio_min, &unix_ns, &limit) ||
        PyBytes_AsStringAndSize(data, &bytes, &length) < 0)
        return NULL;
    if (at < 0 || at > length || !PyList_Check(batch.vbuckets) || !PySet_Check(batch.dirty) ||
        (batch.pending != Py_None && !PyDict_Check(batch.pending))) {
        PyErr_SetString(PyExc_ValueError, "a place outside of the data, or a wrong collection");
        return NULL;
    }
    batch.data = (const uint8_t *)bytes;
    batch.length = (size_t)length;
    batch.at = (size_t)at;
    batch.unix_ns = unix_ns;
    Request request;
    int status = DONE, ahead = 0;
    while (status == DONE && (Py_ssize_t)batch.out_bytes <= limit && read_request(&batch, &request)) {
        size_t before = batch.out_bytes;
        if (!ahead)
            ahead = look_ahead(&batch);
        ahead -= ahead > 0;
        status = (batch.stopwatch == Py_None ? answer_one : answer_traced)(&batch, &request);
        if (status != DONE)
            batch.out_bytes = before;
    }
    if (status != FAILED)
        result = Py_BuildValue("ny#KKK", (Py_ssize_t)batch.at, batch.out ? (const char *)batch.out : "",
                               (Py_ssize_t)batch.out_bytes, batch.gets, batch.sets, batch.stored_bytes);
    free(batch.out);
    free(batch.inflated);
    return result;
}
