/* For dcpstream.client: follows the messages of all streams of a receive at once.
 *
 * A server sends the streams of a connection in turns of one or two messages. `walk` takes the messages in the order of
 * arrival, checks each against what is known of its stream, and moves the stream's position. Python sees a receive, not
 * a message: for all rows together it gets one array that says which stream each belongs to, and one record for each
 * stream that moved.
 *
 * What is known of a stream stands in a table that Python owns and fills (dcpstream.client.machine.connection.
 * stream_table). A stream is only there while the next messages are plain: rows, SEQNO_ADVANCED, and markers that ask
 * for nothing. The rules for them are those of `ReceivedSnapshots` (dcpstream.dcp.snapshot), which is the definition of
 * what is right. `walk` takes a message only if it breaks none of them. It hands over every other message, and with it
 * all later messages of that stream in this receive; Python looks at these one by one.
 *
 * `walk` changes nothing that lasts: each stream's new state stands beside the old one until `settle` takes it over. So
 * a receive that cannot be decoded moves no position.
 */

#include "head.h"

enum {
    MARKER = 0x56,
    SEQNO_ADVANCED = 0x64,
    SEQNO_ADVANCED_EXTRAS = 8,
    MARKER_EXTRAS = 20, /* of the first version; later ones have these fields at the begin of the value */
    MARKER_LATER_EXTRAS = 1,
    MARKER_DISK = 0x02,
    MARKER_ACK = 0x08,
    MARKER_HISTORY = 0x10,
    MARKER_DUPLICATE = 0x20,

    /* States of a stream. */
    OFF = 0,   /* its messages are handed over */
    PLAIN = 1, /* seqnos rise within a snapshot */
    UNORDERED = 2,

    /* Flags of a stream. */
    HAS_ITEMS = 1,     /* an item came since the stream was opened */
    TAKES_MARKERS = 2, /* markers that ask for nothing are taken */
    WANTS_HISTORY = 4, /* a marker without the flag for history is handed over */
    IS_MARKED = 8,     /* a marker was taken since Python last looked */
    HAS_LIMIT = 16,    /* its end is a purge limit: the next marker is handed over */

    FIRST_ROOM = 1024,
    GROWTH = 2,
    RELEASE_BYTES = 64 * 1024,
    AHEAD = 6, /* frames of the present length between a header and the one that is fetched into the cache */
};

/* The number of a row's move, for a row that is handed over. */
static const uint32_t NOBODY = UINT32_MAX;

/* Python packs and unpacks this; there are no gaps in it. */
typedef struct {
    uint32_t opaque;
    uint16_t vbid;
    uint8_t state, flags;
    uint64_t seqno;       /* of the last item; UNORDERED: the highest so far */
    uint64_t begin, end;  /* the bounds of the snapshot that the position lies in */
    uint64_t first, last; /* an item lies within them */
    uint64_t stop;        /* the first seqno that is handed over */
} Known;

typedef struct {
    Known known, now; /* what counts, and what will count when this receive does */
    uint32_t round;   /* `now` and `move` are of this walk */
    uint32_t move;    /* the number of its move; NOBODY if it has none under the present marker */
    uint64_t unused;
} Stream;

/* A stream under one marker, after the walk. */
typedef struct {
    uint64_t seqno, begin, end;
    uint32_t stream, rows;
} Move;

typedef struct {
    size_t count, room;
} Length;

typedef struct {
    Stream *streams;
    size_t mask;
    uint32_t round;
    /* Results, malloc'd. */
    int64_t *starts; /* of the rows */
    uint32_t *owners;
    Move *moves;
    uint32_t *touched; /* streams whose state changed */
    int64_t *others;   /* pairs: rows before it, start of a message that is no row */
    int64_t *handed;   /* pairs: the first and the last row but one that are handed over */
    uint32_t *marked;  /* moves under a marker that was taken */
    Length rows_length, moves_length, touched_length, others_length, handed_length, marked_length;
    Py_ssize_t end, fault;
    int64_t key_bytes, value_bytes;
    int no_memory;
} Walk;

/* Make room for one more element; false without memory. */
static int grow(Walk *w, Length *length, void **array, size_t width) {
    if (LIKELY(length->count < length->room))
        return 1;
    size_t room = length->room ? length->room * GROWTH : FIRST_ROOM;
    void *larger = realloc(*array, room * width);
    if (!larger) {
        w->no_memory = 1;
        return 0;
    }
    *array = larger;
    length->room = room;
    return 1;
}

static int put_pair(Walk *w, Length *length, int64_t **pairs, int64_t left, int64_t right) {
    if (!grow(w, length, (void **)pairs, 2 * sizeof(int64_t)))
        return 0;
    (*pairs)[2 * length->count] = left;
    (*pairs)[2 * length->count + 1] = right;
    length->count++;
    return 1;
}

static int put_number(Walk *w, Length *length, uint32_t **numbers, uint32_t number) {
    if (!grow(w, length, (void **)numbers, sizeof(uint32_t)))
        return 0;
    (*numbers)[length->count++] = number;
    return 1;
}

/* The stream of a frame, with its present state; NULL if the table does not have it, or without memory. */
INLINE Stream *stream_of(Walk *w, const uint8_t *frame) {
    uint32_t opaque = u32_at(frame + OPAQUE_AT);
    Stream *stream = &w->streams[opaque & w->mask];
    if (UNLIKELY(stream->known.opaque != opaque || stream->known.state == OFF))
        return NULL;
    if (stream->round != w->round) {
        if (!put_number(w, &w->touched_length, &w->touched, (uint32_t)(opaque & w->mask)))
            return NULL;
        stream->now = stream->known;
        stream->round = w->round;
        stream->move = NOBODY;
    }
    return stream;
}

/* The number of the stream's move, NOBODY without memory. */
INLINE uint32_t move_of(Walk *w, Stream *stream) {
    if (LIKELY(stream->move < w->moves_length.count))
        return stream->move;
    if (!grow(w, &w->moves_length, (void **)&w->moves, sizeof(Move)))
        return NOBODY;
    uint32_t number = (uint32_t)w->moves_length.count;
    if (stream->now.flags & IS_MARKED) {
        if (!put_number(w, &w->marked_length, &w->marked, number))
            return NOBODY;
        stream->now.flags &= (uint8_t)~IS_MARKED;
    }
    w->moves[w->moves_length.count++] = (Move){.stream = (uint32_t)(stream - w->streams)};
    return stream->move = number;
}

/* Take an item, if it is plain: the number of its move, or NOBODY. */
INLINE uint32_t take(Walk *w, Stream *stream, const uint8_t *frame, uint64_t seqno) {
    Known *now = &stream->now;
    if (UNLIKELY(u16_at(frame + 6) != now->vbid))
        return NOBODY;
    if (LIKELY(now->state == PLAIN)) {
        if (UNLIKELY(seqno <= now->seqno || seqno < now->first || seqno > now->last || seqno >= now->stop))
            return NOBODY;
    } else if (now->state == OFF) {
        return NOBODY;
    }
    uint32_t number = move_of(w, stream);
    if (UNLIKELY(number == NOBODY))
        return NOBODY;
    if (now->state == PLAIN) {
        now->seqno = seqno;
        now->begin = now->first;
        now->end = now->last;
        now->flags |= HAS_ITEMS;
    } else if (seqno > now->seqno) {
        now->seqno = seqno;
    }
    w->moves[number].seqno = now->seqno;
    w->moves[number].begin = now->begin;
    w->moves[number].end = now->end;
    return number;
}

/* Take a marker, if it is plain. */
static int take_marker(Stream *stream, const uint8_t *frame, const Head *head) {
    Known *now = &stream->now;
    const uint8_t *body = frame + HEADER_BYTES;
    size_t rest = head->body - head->extras - head->key;
    if (now->state != PLAIN || !(now->flags & TAKES_MARKERS) || u16_at(frame + 6) != now->vbid || head->framing ||
        head->key)
        return 0;
    if (head->extras == MARKER_LATER_EXTRAS && rest >= MARKER_EXTRAS)
        body += MARKER_LATER_EXTRAS;
    else if (head->extras != MARKER_EXTRAS)
        return 0;
    uint64_t first = u64_at(body), last = u64_at(body + 8);
    uint32_t flags = u32_at(body + 16);
    int is_behind = first < now->seqno && (last < now->seqno || now->flags & HAS_ITEMS);
    if (first > last || is_behind || flags & MARKER_ACK || now->flags & HAS_LIMIT)
        return 0;
    if (now->flags & WANTS_HISTORY && !(flags & MARKER_HISTORY))
        return 0;
    if (first < now->seqno && now->begin == now->seqno && now->end == now->seqno)
        first = now->seqno;
    now->first = first;
    now->last = last;
    now->flags |= IS_MARKED;
    /* The first snapshot of a stream from the beginning, with each document once, as it is at the end. */
    if (!now->seqno && (flags & (MARKER_DISK | MARKER_HISTORY | MARKER_DUPLICATE)) == MARKER_DISK)
        now->flags |= HAS_LIMIT;
    stream->move = NOBODY;
    return 1;
}

/* A row: the number of its move, or NOBODY. */
INLINE uint32_t take_row(Walk *w, const uint8_t *frame, const Head *head) {
    Stream *stream = stream_of(w, frame);
    if (UNLIKELY(!stream))
        return NOBODY;
    uint32_t number = NOBODY;
    if (LIKELY(extras_fit(head)))
        number = take(w, stream, frame, u64_at(frame + HEADER_BYTES + head->framing));
    if (LIKELY(number != NOBODY))
        w->moves[number].rows++;
    else
        stream->now.state = OFF;
    return number;
}

/* A message that is no row: whether it was taken. */
static int take_other(Walk *w, const uint8_t *frame, const Head *head) {
    Stream *stream = stream_of(w, frame);
    if (!stream)
        return 0;
    if (head->magic == REQUEST && head->opcode == SEQNO_ADVANCED && head->extras == SEQNO_ADVANCED_EXTRAS &&
        stream->now.state == PLAIN && take(w, stream, frame, u64_at(frame + HEADER_BYTES)) != NOBODY)
        return 1;
    if (head->magic == REQUEST && head->opcode == MARKER && take_marker(stream, frame, head))
        return 1;
    stream->now.state = OFF;
    return 0;
}

static int put_row(Walk *w, Py_ssize_t at, uint32_t owner) {
    Length *length = &w->rows_length;
    if (UNLIKELY(length->count == length->room)) {
        Length other = *length;
        if (!grow(w, &other, (void **)&w->starts, sizeof(int64_t)) ||
            !grow(w, length, (void **)&w->owners, sizeof(uint32_t)))
            return 0;
    }
    int64_t row = (int64_t)length->count++;
    w->starts[row] = at;
    w->owners[row] = owner;
    if (LIKELY(owner != NOBODY))
        return 1;
    int64_t *last = w->handed_length.count ? &w->handed[2 * w->handed_length.count - 1] : NULL;
    if (last && *last == row) {
        *last = row + 1;
        return 1;
    }
    return put_pair(w, &w->handed_length, &w->handed, row, row + 1);
}

static void follow(Walk *w, const uint8_t *bytes, Py_ssize_t start, Py_ssize_t stop) {
    Py_ssize_t at = start;
    w->fault = -1;
    while (stop - at >= HEADER_BYTES) {
        Head head;
        if (UNLIKELY(!read_head(bytes + at, &head))) {
            w->fault = at;
            break;
        }
        Py_ssize_t after = at + HEADER_BYTES + head.body;
        if (after > stop)
            break;
        /* Frames often have about the same length, so the next ones can be fetched before their places are known. */
        if (LIKELY((stop - after) / AHEAD > after - at))
            PREFETCH(bytes + after + (AHEAD - 1) * (after - at));
        if (LIKELY(is_data(&head))) {
            uint32_t owner = take_row(w, bytes + at, &head);
            w->key_bytes += head.key;
            w->value_bytes += head.body - head.framing - head.extras - head.key;
            if (!put_row(w, at, owner))
                break;
        } else if (!take_other(w, bytes + at, &head) &&
                   !put_pair(w, &w->others_length, &w->others, (int64_t)w->rows_length.count, at)) {
            break;
        }
        if (UNLIKELY(w->no_memory))
            break;
        at = after;
    }
    w->end = at;
}

/* A list of pairs of numbers, as tuples. */
static PyObject *pairs_of(const int64_t *pairs, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *pair = Py_BuildValue("LL", (long long)pairs[2 * i], (long long)pairs[2 * i + 1]);
        if (!pair || PyList_SetItem(list, (Py_ssize_t)i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* The objects of the streams that moved, in the order of the moves. */
static PyObject *runs_of(const Walk *w, PyObject *runs) {
    size_t count = w->moves_length.count;
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *run = PyList_GetItem(runs, (Py_ssize_t)w->moves[i].stream);
        if (!run || PyTuple_SetItem(tuple, (Py_ssize_t)i, Py_NewRef(run)) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *bytes_of(const void *from, size_t size) {
    return PyBytes_FromStringAndSize(size ? (const char *)from : "", (Py_ssize_t)size);
}

/* A table of whole streams, a power of two of them; false with an error. */
static int take_table(Py_buffer *table, Stream **streams, size_t *mask) {
    size_t count = (size_t)table->len / sizeof(Stream);
    if (!count || (size_t)table->len % sizeof(Stream) || count & (count - 1) || count > UINT32_MAX || table->readonly ||
        (uintptr_t)table->buf % sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "a table that is none");
        return 0;
    }
    *streams = table->buf;
    *mask = count - 1;
    return 1;
}

const char kernel_walk_doc[] =
    "walk(buffer, start, stop, table, round, runs)\n"
    "    -> (starts, end, key_bytes, value_bytes, fault, others, owners, moves, moved, marked, handed, touched)\n\n"
    "Follow and check the frames of buffer[start:stop], and take those that are plain for their streams.\n\n"
    "`table` has the streams, `round` differs from that of each walk before, `runs` is a list with an object for each\n"
    "stream. Returns: offsets of the rows as int64 in bytes; where the last whole frame ends; bytes of the rows' keys\n"
    "and values; the offset of a header that is none, or -1; (rows before it, start) of each other message that is\n"
    "handed over; the move of each row as uint32, 0xFFFFFFFF for none; the moves in bytes; their objects of `runs`; the\n"
    "first moves under markers that were taken, as uint32; (first, stop) of the rows that are handed over; what to\n"
    "settle.";

PyObject *kernel_walk(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer buffer, table;
    Py_ssize_t start, stop;
    PyObject *runs, *result = NULL;
    unsigned long round;
    Walk w = {0};
    if (!PyArg_ParseTuple(arguments, "y*nnw*kO!", &buffer, &start, &stop, &table, &round, &PyList_Type, &runs))
        return NULL;
    if (!take_table(&table, &w.streams, &w.mask))
        goto done;
    if (start < 0 || stop < start || stop > buffer.len || (size_t)PyList_Size(runs) <= w.mask) {
        PyErr_SetString(PyExc_ValueError, "bounds outside of the buffer, or a list that is too short");
        goto done;
    }
    w.round = (uint32_t)round;
    if (stop - start >= RELEASE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        follow(&w, buffer.buf, start, stop);
        Py_END_ALLOW_THREADS
    } else {
        follow(&w, buffer.buf, start, stop);
    }
    if (w.no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    PyObject *parts[] = {
        bytes_of(w.starts, w.rows_length.count * sizeof(int64_t)),
        PyLong_FromSsize_t(w.end),
        PyLong_FromLongLong(w.key_bytes),
        PyLong_FromLongLong(w.value_bytes),
        PyLong_FromSsize_t(w.fault),
        pairs_of(w.others, w.others_length.count),
        bytes_of(w.owners, w.rows_length.count * sizeof(uint32_t)),
        bytes_of(w.moves, w.moves_length.count * sizeof(Move)),
        runs_of(&w, runs),
        bytes_of(w.marked, w.marked_length.count * sizeof(uint32_t)),
        pairs_of(w.handed, w.handed_length.count),
        bytes_of(w.touched, w.touched_length.count * sizeof(uint32_t)),
    };
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
    int is_whole = 1;
    for (size_t i = 0; i < PARTS; i++)
        is_whole = is_whole && parts[i];
    if (is_whole)
        result = PyTuple_New(PARTS);
    for (size_t i = 0; i < PARTS; i++) {
        if (result)
            PyTuple_SetItem(result, (Py_ssize_t)i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    }
done:
    free(w.starts);
    free(w.owners);
    free(w.moves);
    free(w.touched);
    free(w.others);
    free(w.handed);
    free(w.marked);
    PyBuffer_Release(&table);
    PyBuffer_Release(&buffer);
    return result;
}

const char kernel_settle_doc[] =
    "settle(table, touched)\n\n"
    "The messages that a walk has taken count: take over the states of the streams that it has touched.";

PyObject *kernel_settle(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer table, touched;
    Stream *streams;
    size_t mask;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "w*y*", &table, &touched))
        return NULL;
    if (take_table(&table, &streams, &mask)) {
        const uint8_t *numbers = touched.buf;
        size_t count = (size_t)touched.len / sizeof(uint32_t);
        for (size_t i = 0; i < count; i++) {
            uint32_t number;
            memcpy(&number, numbers + i * sizeof(number), sizeof(number));
            Stream *stream = &streams[number & mask];
            uint8_t state = stream->known.state; /* a message that was handed over ends the walk alone */
            stream->known = stream->now;
            stream->known.state = state;
        }
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&touched);
    PyBuffer_Release(&table);
    return result;
}

const char kernel_reached_doc[] =
    "reached(owners, seqnos, first, stop, moves) -> bytes\n\n"
    "The moves with the seqno of their last row within first..stop instead of their last one; those without a row there\n"
    "have 0 rows.";

PyObject *kernel_reached(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer owners, seqnos, moves;
    Py_ssize_t first, stop;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*nny*", &owners, &seqnos, &first, &stop, &moves))
        return NULL;
    size_t count = (size_t)moves.len / sizeof(Move);
    Move *some = NULL;
    if (first < 0 || stop < first || stop > owners.len / (Py_ssize_t)sizeof(uint32_t) ||
        stop > seqnos.len / (Py_ssize_t)sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "rows outside of the columns");
        goto done;
    }
    some = malloc(count ? count * sizeof(Move) : 1);
    if (!some) {
        PyErr_NoMemory();
        goto done;
    }
    if (count)
        memcpy(some, moves.buf, count * sizeof(Move));
    for (size_t i = 0; i < count; i++)
        some[i].rows = 0;
    for (Py_ssize_t row = first; row < stop; row++) {
        uint32_t owner;
        uint64_t seqno;
        memcpy(&owner, (const uint8_t *)owners.buf + row * 4, sizeof(owner));
        memcpy(&seqno, (const uint8_t *)seqnos.buf + row * 8, sizeof(seqno));
        if (owner >= count)
            continue;
        if (!some[owner].rows++ || seqno > some[owner].seqno)
            some[owner].seqno = seqno;
    }
    result = bytes_of(some, count * sizeof(Move));
done:
    free(some);
    PyBuffer_Release(&moves);
    PyBuffer_Release(&seqnos);
    PyBuffer_Release(&owners);
    return result;
}
