/* For dcpstream_node.store and dcpstream.wire: the rows that a reader sees, and blocks of their frames.
 *
 * `select_rows` looks for the rows that were not superseded up to a seqno, `cut` copies the runs of their frames out of
 * a larger piece of memory, and `mark` writes a stream's opaque into the headers of many frames.
 */

#include "kernel.h"

enum {
    KIND_SHIFT = 56,
    FIRST_ROWS = 1024, /* rows that room is made for at first, and the factor by which it grows */
    GROWTH = 2,
    WORD = sizeof(int64_t),
};

static const uint64_t POSITION_MASK = ((uint64_t)1 << KIND_SHIFT) - 1;

/* Buffers of 64-bit numbers, released together. */
typedef struct {
    Py_buffer buffer[3];
    int held;
} Columns;

static const uint64_t *take(Columns *columns, PyObject *object, Py_ssize_t count) {
    Py_buffer *buffer = &columns->buffer[columns->held];
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    columns->held++;
    /* An empty array of Python lies anywhere. */
    if (buffer->len < count * WORD || (buffer->len > 0 && (uintptr_t)buffer->buf % WORD)) {
        PyErr_SetString(PyExc_ValueError, "a column that is too short, or not aligned");
        return NULL;
    }
    return buffer->buf;
}

static void release(Columns *columns) {
    while (columns->held > 0)
        PyBuffer_Release(&columns->buffer[--columns->held]);
}

const char kernel_select_rows_doc[] =
    "select_rows(positions, successors, seqnos, first, stop, end, view_seqno, max_bytes)\n"
    "    -> (starts, seqnos, runs, kinds)\n\n"
    "The rows of [first, stop) that no row up to `view_seqno` superseded: up to `max_bytes`, but at least one.\n\n"
    "Returns: as int64 in bytes: per row its start in a copy of the runs, and its seqno; begin and end of each run of\n"
    "positions; and the kinds of the rows.";

PyObject *kernel_select_rows(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *position_object, *successor_object, *seqno_object, *result = NULL;
    Py_ssize_t first, stop;
    unsigned long long end, view_seqno, max_bytes;
    if (!PyArg_ParseTuple(arguments, "OOOnnKKK", &position_object, &successor_object, &seqno_object, &first, &stop,
                          &end, &view_seqno, &max_bytes))
        return NULL;
    if (first < 0 || stop < first || stop > PY_SSIZE_T_MAX / WORD) {
        PyErr_SetString(PyExc_ValueError, "bounds outside of the rows");
        return NULL;
    }
    Columns columns = {.held = 0};
    const uint64_t *positions = take(&columns, position_object, stop);
    const uint64_t *successors = positions ? take(&columns, successor_object, stop) : NULL;
    const uint64_t *seqnos = successors ? take(&columns, seqno_object, stop) : NULL;
    int64_t *starts = NULL, *found = NULL, *runs = NULL;
    if (!seqnos)
        goto done;
    Py_ssize_t total = columns.buffer[0].len / WORD;
    size_t count = 0, room = 0, run_count = 0;
    uint64_t size = 0, kinds = 0;
    for (Py_ssize_t row = first; row < stop; row++) {
        if (successors[row] <= view_seqno)
            continue;
        uint64_t begin = positions[row] & POSITION_MASK;
        uint64_t finish = row + 1 < total ? positions[row + 1] & POSITION_MASK : end;
        if (count && size + (finish - begin) > max_bytes)
            break;
        if (count == room) {
            size_t larger = room ? room * GROWTH : FIRST_ROWS;
            int64_t *more[3] = {realloc(starts, larger * WORD), NULL, NULL};
            if (more[0])
                starts = more[0], more[1] = realloc(found, larger * WORD);
            if (more[1])
                found = more[1], more[2] = realloc(runs, 2 * larger * WORD);
            if (!more[2]) {
                PyErr_NoMemory();
                goto done;
            }
            runs = more[2];
            room = larger;
        }
        starts[count] = (int64_t)size;
        found[count++] = (int64_t)seqnos[row];
        kinds |= positions[row] >> KIND_SHIFT;
        if (run_count && runs[2 * run_count - 1] == (int64_t)begin) {
            runs[2 * run_count - 1] = (int64_t)finish;
        } else {
            runs[2 * run_count] = (int64_t)begin;
            runs[2 * run_count + 1] = (int64_t)finish;
            run_count++;
        }
        size += finish - begin;
    }
    result = Py_BuildValue("y#y#y#K", starts ? (const char *)starts : "", (Py_ssize_t)(count * WORD),
                           found ? (const char *)found : "", (Py_ssize_t)(count * WORD),
                           runs ? (const char *)runs : "", (Py_ssize_t)(2 * run_count * WORD), kinds);
done:
    free(starts);
    free(found);
    free(runs);
    release(&columns);
    return result;
}

/* Pieces of memory that follow each other. */
typedef struct {
    Py_buffer *buffer; /* malloc'd */
    size_t held, next;
    size_t before; /* bytes in front of the piece `next` */
} Parts;

static int take_parts(Parts *parts, PyObject *list) {
    Py_ssize_t count = PyList_Size(list);
    parts->buffer = count < 0 ? NULL : malloc(((size_t)count + 1) * sizeof(Py_buffer));
    if (!parts->buffer) {
        if (count >= 0)
            PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *part = PyList_GetItem(list, i);
        if (!part || PyObject_GetBuffer(part, &parts->buffer[i], PyBUF_SIMPLE) < 0)
            return -1;
        parts->held++;
    }
    return 0;
}

static void release_parts(Parts *parts) {
    while (parts->held > 0)
        PyBuffer_Release(&parts->buffer[--parts->held]);
    free(parts->buffer);
}

/* Copy the bytes [begin, finish), which are there and not before those of the last call. */
static void copy_from(Parts *parts, uint8_t *to, size_t begin, size_t finish) {
    while (begin < finish) {
        const Py_buffer *part = &parts->buffer[parts->next];
        size_t length = (size_t)part->len;
        if (begin >= parts->before + length) {
            parts->before += length;
            parts->next++;
            continue;
        }
        size_t end = parts->before + length < finish ? parts->before + length : finish;
        memcpy(to, (const uint8_t *)part->buf + (begin - parts->before), end - begin);
        to += end - begin;
        begin = end;
    }
}

const char kernel_cut_doc[] = "cut(parts, base, runs, into=None) -> bytearray or into\n\n"
                              "A copy of some runs of positions, begin and end of each as int64, rising; the first of\n"
                              "the parts begins at the position `base`, each other one where the one before ends.\n"
                              "`into` is memory of exactly the size of the runs; without it the memory is fresh.";

PyObject *kernel_cut(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *list, *run_object, *into = Py_None, *result = NULL;
    long long base;
    if (!PyArg_ParseTuple(arguments, "O!LO|O", &PyList_Type, &list, &base, &run_object, &into))
        return NULL;
    Columns columns = {.held = 0};
    Parts parts = {.buffer = NULL};
    Py_buffer given = {.obj = NULL};
    const int64_t *runs = (const int64_t *)take(&columns, run_object, 0);
    if (!runs || take_parts(&parts, list) < 0)
        goto done;
    size_t count = (size_t)columns.buffer[0].len / (2 * WORD), size = 0, there = 0;
    for (size_t i = 0; i < parts.held; i++)
        there += (size_t)parts.buffer[i].len;
    for (size_t i = 0; i < count; i++) {
        int64_t begin = runs[2 * i], finish = runs[2 * i + 1];
        if (begin < (i ? runs[2 * i - 1] : base) || finish < begin ||
            (uint64_t)finish - (uint64_t)base > (uint64_t)there) {
            PyErr_SetString(PyExc_ValueError, "a run outside of the data");
            goto done;
        }
        size += (size_t)(finish - begin); /* the runs do not overlap, so this is at most `there` */
    }
    uint8_t *to;
    if (into == Py_None) {
        result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (!result)
            goto done;
        to = (uint8_t *)PyByteArray_AsString(result);
    } else {
        if (PyObject_GetBuffer(into, &given, PyBUF_WRITABLE) < 0)
            goto done;
        if ((size_t)given.len != size) {
            PyErr_SetString(PyExc_ValueError, "memory of another size than the runs");
            goto done;
        }
        to = given.buf;
        result = into;
        Py_INCREF(result);
    }
    for (size_t i = 0; i < count; i++) {
        size_t begin = (size_t)(runs[2 * i] - base), finish = (size_t)(runs[2 * i + 1] - base);
        copy_from(&parts, to, begin, finish);
        to += finish - begin;
    }
done:
    if (given.obj)
        PyBuffer_Release(&given);
    release_parts(&parts);
    release(&columns);
    return result;
}

const char kernel_mark_doc[] = "mark(frames, starts, begin, opaque)\n\n"
                               "Write the opaque into the header of each frame; `starts` are int64, of which `begin` is\n"
                               "that of the first byte.";

PyObject *kernel_mark(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *frame_object, *start_object, *result = NULL;
    Py_buffer frames;
    long long begin;
    unsigned long opaque;
    if (!PyArg_ParseTuple(arguments, "OOLk", &frame_object, &start_object, &begin, &opaque) ||
        PyObject_GetBuffer(frame_object, &frames, PyBUF_WRITABLE) < 0)
        return NULL;
    Columns columns = {.held = 0};
    const int64_t *starts = (const int64_t *)take(&columns, start_object, 0);
    if (!starts)
        goto done;
    size_t count = (size_t)columns.buffer[0].len / WORD;
    for (size_t i = 0; i < count; i++) {
        if (starts[i] < begin || (uint64_t)starts[i] - (uint64_t)begin > (uint64_t)frames.len ||
            (uint64_t)frames.len - ((uint64_t)starts[i] - (uint64_t)begin) < HEADER_BYTES) {
            PyErr_SetString(PyExc_ValueError, "a frame outside of the data");
            goto done;
        }
        put_u32((uint8_t *)frames.buf + (starts[i] - begin) + OPAQUE_AT, (uint32_t)opaque);
    }
    result = Py_None;
    Py_INCREF(result);
done:
    release(&columns);
    PyBuffer_Release(&frames);
    return result;
}
