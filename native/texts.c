/* For dcpstream.columnar: columns of texts.
 *
 * `gather_texts` makes a column of which every element is one of a few texts, as Arrow's `take` does, in one pass.
 * `is_ascii` tells whether bytes are plain ASCII, and so text without a closer look.
 */

#include "kernel.h"

enum { WORD = sizeof(uint64_t), BATCH = 8 };
static const uint64_t HIGH_BITS = 0x8080808080808080u;

INLINE size_t choice_at(const uint8_t *choice, size_t width, size_t row) {
    uint16_t two;
    if (width == 1)
        return choice[row];
    memcpy(&two, choice + row * width, sizeof(two));
    return two;
}

typedef struct {
    const uint8_t *choice, *text;
    size_t width, rows, texts, text_bytes;
    const int32_t *bounds;
} Gather;

/* The bytes of the column; -1 if an element is chosen that is not there, -2 for a text outside of its buffer. */
static int64_t measure(const Gather *g) {
    int64_t total = 0;
    for (size_t row = 0; row < g->rows; row++) {
        size_t number = choice_at(g->choice, g->width, row);
        if (UNLIKELY(number >= g->texts))
            return -1;
        int32_t from = g->bounds[number], to = g->bounds[number + 1];
        if (UNLIKELY(from < 0 || to < from || (size_t)to > g->text_bytes))
            return -2;
        if (UNLIKELY(from == to))
            return -1;
        total += to - from;
    }
    return total;
}

static void gather(const Gather *g, uint8_t *offsets, uint8_t *bytes, size_t room) {
    int32_t at = 0;
    memcpy(offsets, &at, sizeof(at));
    for (size_t row = 0; row < g->rows; row++) {
        size_t number = choice_at(g->choice, g->width, row);
        int32_t from = g->bounds[number], length = g->bounds[number + 1] - from;
        if (LIKELY((size_t)from + 2 * WORD <= g->text_bytes && (size_t)at + 2 * WORD <= room)) {
            /* Two words at once: what is too much is overwritten by the next text. */
            memcpy(bytes + at, g->text + from, 2 * WORD);
            if (UNLIKELY((size_t)length > 2 * WORD))
                memcpy(bytes + at, g->text + from, (size_t)length);
        } else {
            memcpy(bytes + at, g->text + from, (size_t)length);
        }
        at += length;
        memcpy(offsets + (row + 1) * sizeof(at), &at, sizeof(at));
    }
}

const char kernel_gather_texts_doc[] =
    "gather_texts(choice, rows, bounds, text) -> (offsets, bytes) or None\n\n"
    "The text bounds[n]:bounds[n + 1] for each number n in `choice`, which are of one or two bytes. None if a text is\n"
    "chosen that is empty or not there.";

PyObject *kernel_gather_texts(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer choice, bounds, text;
    Py_ssize_t rows;
    PyObject *result = NULL, *offsets = NULL, *bytes = NULL;
    if (!PyArg_ParseTuple(arguments, "y*ny*y*", &choice, &rows, &bounds, &text))
        return NULL;
    Gather g = {
        .choice = choice.buf,
        .text = text.buf,
        .width = rows > 0 ? (size_t)(choice.len / rows) : 1,
        .rows = (size_t)rows,
        .texts = (size_t)bounds.len / sizeof(int32_t),
        .text_bytes = (size_t)text.len,
        .bounds = bounds.buf,
    };
    if (rows < 0 || g.width < 1 || g.width > 2 || (size_t)choice.len != g.rows * g.width || !g.texts ||
        (uintptr_t)bounds.buf % sizeof(int32_t)) {
        PyErr_SetString(PyExc_ValueError, "numbers that are not of one or two bytes, or bounds that are none");
        goto done;
    }
    g.texts--;
    int64_t total = measure(&g);
    if (total == -2 || total > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text outside of its buffer, or too many texts");
        goto done;
    }
    if (total < 0) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    offsets = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((g.rows + 1) * sizeof(int32_t)));
    bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (offsets && bytes) {
        gather(&g, (uint8_t *)PyBytes_AsString(offsets), (uint8_t *)PyBytes_AsString(bytes), (size_t)total);
        result = PyTuple_Pack(2, offsets, bytes);
    }
done:
    Py_XDECREF(offsets);
    Py_XDECREF(bytes);
    PyBuffer_Release(&choice);
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&text);
    return result;
}

const char kernel_is_ascii_doc[] = "is_ascii(bytes, start, stop) -> bool\n\nWhether bytes[start:stop] are all ASCII.";

PyObject *kernel_is_ascii(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer buffer;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(arguments, "y*nn", &buffer, &start, &stop))
        return NULL;
    PyObject *result = NULL;
    if (start < 0 || stop < start || stop > buffer.len) {
        PyErr_SetString(PyExc_ValueError, "bounds outside of the buffer");
    } else {
        const uint8_t *at = (const uint8_t *)buffer.buf + start, *end = (const uint8_t *)buffer.buf + stop;
        uint64_t seen = 0;
        for (; end - at >= BATCH * WORD && !(seen & HIGH_BITS); at += BATCH * WORD) {
            uint64_t words[BATCH];
            memcpy(words, at, sizeof(words));
            for (int i = 0; i < BATCH; i++)
                seen |= words[i];
        }
        for (; at < end; at++)
            seen |= *at;
        result = PyBool_FromLong(!(seen & HIGH_BITS));
    }
    PyBuffer_Release(&buffer);
    return result;
}
