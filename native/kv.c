/* For dcpstream.client.kv: requests of many documents, and the answers among received bytes.
 *
 * `writes` and `reads` take documents or keys from an iterator and make the requests of one window of them: they hash
 * each key to its vbucket, and build the request. `answers` cuts received bytes into answers, and `results` makes tokens
 * and documents of them. The objects are tuples of the classes that the caller gives (dcpstream.client.kv). They refer to numbers and bytes only, so they are in no
 * cycle, and the collector need not look at them.
 */

#include "kernel.h"

enum {
    GET = 0x00,
    SET = 0x01,
    DELETE = 0x04,
    RESPONSE = 0x81,
    FLEX_RESPONSE = 0x18,

    KEY_FIELD_MAX = 0xFFFF,                       /* longest key that a header can announce */
    ANSWER_BODY_MAX = 30 * 1024 * 1024,           /* the server's default max_packet_size */
    VBUCKET_SHIFT = 16, VBUCKET_MASK = 0x7FFF,    /* the bits of a key's checksum that choose its vbucket */
    BYTE_VALUES = 256,
};

/* The polynomial of CRC-32 in IEEE 802.3, its lowest bit first. */
static const uint32_t POLYNOMIAL = 0xEDB88320u;
static uint32_t crc_of_byte[BYTE_VALUES]; /* filled once, while Python's lock is held */

static void fill_table(void) {
    if (crc_of_byte[1])
        return;
    for (uint32_t byte = 0; byte < BYTE_VALUES; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        crc_of_byte[byte] = crc;
    }
}

INLINE uint16_t vbucket_of(const uint8_t *key, size_t length, uint32_t vbuckets) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < length; i++)
        crc = crc >> 8 ^ crc_of_byte[(crc ^ key[i]) & 0xFF];
    return (uint16_t)((~crc >> VBUCKET_SHIFT & VBUCKET_MASK) % vbuckets);
}

/* A named tuple, to be filled; NULL with an error. */
static PyObject *new_row(PyTypeObject *type, Py_ssize_t fields) {
    PyObject *row = PyType_GenericAlloc(type, fields);
    if (row)
        PyObject_GC_UnTrack(row);
    return row;
}

/* Put an owned object, NULL after an error, into a new tuple; false with that error. */
INLINE int put(PyObject *row, Py_ssize_t field, PyObject *owned) {
    return owned && PyTuple_SetItem(row, field, owned) == 0;
}

static int check_type(PyObject *type) {
    if (PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))
        return 1;
    PyErr_SetString(PyExc_TypeError, "a class that is no tuple");
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ requests */

enum { OPERATION_FIELDS = 5 };

typedef struct {
    PyTypeObject *type;
    PyObject *items;    /* an iterator */
    uint32_t vbuckets;
    const char *prefix; /* of each key on the wire */
    Py_ssize_t prefix_bytes;
    const char *extras; /* of each document that is written */
    Py_ssize_t extras_bytes;
    Py_ssize_t most, most_bytes;
    PyObject *opcodes[DELETE + 1], *no_tag; /* owned */
} Requests;

/* Text as UTF-8, and bytes as they are. `held` owns them; NULL with an error. */
static const char *bytes_of(PyObject *object, Py_ssize_t *length, PyObject **held) {
    *held = NULL;
    if (PyUnicode_Check(object)) {
        const char *text = PyUnicode_AsUTF8AndSize(object, length);
        if (text)
            *held = Py_NewRef(object);
        return text;
    }
    if (PyBytes_Check(object))
        *held = Py_NewRef(object);
    else if (!(*held = PyObject_CallMethod(object, "encode", NULL)))
        return NULL;
    char *bytes = NULL;
    if (PyBytes_AsStringAndSize(*held, &bytes, length) < 0)
        Py_CLEAR(*held);
    return bytes;
}

static PyObject *request_of(const Requests *r, uint8_t opcode, const char *key, Py_ssize_t key_bytes, const char *value,
                            Py_ssize_t value_bytes) {
    Py_ssize_t extras_bytes = opcode == SET ? r->extras_bytes : 0, wire_key_bytes = r->prefix_bytes + key_bytes;
    if (wire_key_bytes > KEY_FIELD_MAX) {
        PyErr_Format(PyExc_ValueError, "a key of %zd bytes: at most %zd fit into a request", key_bytes,
                     KEY_FIELD_MAX - r->prefix_bytes);
        return NULL;
    }
    if ((uint64_t)value_bytes > UINT32_MAX - (uint64_t)(extras_bytes + wire_key_bytes)) {
        PyErr_Format(PyExc_ValueError, "a value of %zd bytes does not fit into a request", value_bytes);
        return NULL;
    }
    Py_ssize_t body = extras_bytes + wire_key_bytes + value_bytes;
    uint16_t vbucket = vbucket_of((const uint8_t *)key, (size_t)key_bytes, r->vbuckets);
    PyObject *request = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + body);
    PyObject *row = request ? new_row(r->type, OPERATION_FIELDS) : NULL;
    if (!row) {
        Py_XDECREF(request);
        return NULL;
    }
    uint8_t *p = (uint8_t *)PyBytes_AsString(request);
    memset(p, 0, HEADER_BYTES);
    p[0] = REQUEST;
    p[1] = opcode;
    put_u16(p + 2, (uint16_t)wire_key_bytes);
    p[4] = (uint8_t)extras_bytes;
    put_u16(p + 6, vbucket);
    put_u32(p + 8, (uint32_t)body);
    p += HEADER_BYTES;
    if (extras_bytes)
        memcpy(p, r->extras, (size_t)extras_bytes);
    p += extras_bytes;
    const char *wire_key = (const char *)p;
    memcpy(p, r->prefix, (size_t)r->prefix_bytes);
    memcpy(p + r->prefix_bytes, key, (size_t)key_bytes);
    if (value_bytes)
        memcpy(p + wire_key_bytes, value, (size_t)value_bytes);
    if (put(row, 3, request) && put(row, 0, Py_NewRef(r->opcodes[opcode])) && put(row, 1, PyLong_FromLong(vbucket)) &&
        put(row, 2, PyBytes_FromStringAndSize(wire_key, wire_key_bytes)) && put(row, 4, Py_NewRef(r->no_tag)))
        return row;
    Py_DECREF(row);
    return NULL;
}

/* The request for a key, or for a pair of key and value; NULL with an error. */
static PyObject *operation_of(const Requests *r, PyObject *item, int has_values) {
    PyObject *pair = NULL, *key = item, *value = NULL, *key_held, *value_held = NULL, *result = NULL;
    Py_ssize_t key_bytes, value_bytes = 0;
    uint8_t opcode = GET;
    if (has_values) {
        if (!(pair = PySequence_Tuple(item)))
            return NULL;
        if (PyTuple_Size(pair) != 2) {
            PyErr_Format(PyExc_ValueError, "an item of %zd parts instead of key and value", PyTuple_Size(pair));
            Py_DECREF(pair);
            return NULL;
        }
        key = PyTuple_GetItem(pair, 0);
        value = PyTuple_GetItem(pair, 1);
        opcode = value == Py_None ? DELETE : SET;
    }
    const char *text = bytes_of(key, &key_bytes, &key_held), *body = NULL;
    if (text && opcode == SET)
        body = bytes_of(value, &value_bytes, &value_held);
    if (text && (body || opcode != SET))
        result = request_of(r, opcode, text, key_bytes, body, value_bytes);
    Py_XDECREF(key_held);
    Py_XDECREF(value_held);
    Py_XDECREF(pair);
    return result;
}

static PyObject *window_of(Requests *r, int has_values) {
    static const uint8_t USED[] = {GET, SET, DELETE};
    PyObject *result = NULL, *window;
    Py_ssize_t bytes = 0;
    if (!check_type((PyObject *)r->type))
        return NULL;
    if (!PyIter_Check(r->items) || !r->vbuckets || r->vbuckets > VBUCKET_MASK || r->extras_bytes > UINT8_MAX ||
        r->prefix_bytes > KEY_FIELD_MAX) {
        PyErr_SetString(PyExc_ValueError, "no iterator, or a wrong number of vbuckets, or too long parts of a request");
        return NULL;
    }
    fill_table();
    for (size_t i = 0; i < sizeof(USED); i++)
        if (!(r->opcodes[USED[i]] = PyLong_FromLong(USED[i])))
            goto done;
    if (!(r->no_tag = PyLong_FromLong(0)) || !(window = PyList_New(0)))
        goto done;
    while (PyList_Size(window) < r->most) {
        PyObject *item = PyIter_Next(r->items);
        if (!item)
            break;
        PyObject *operation = operation_of(r, item, has_values);
        Py_DECREF(item);
        int status = operation ? PyList_Append(window, operation) : -1;
        if (status == 0)
            bytes += PyBytes_Size(PyTuple_GetItem(operation, 3));
        Py_XDECREF(operation);
        if (status < 0 || bytes >= r->most_bytes)
            break;
    }
    if (PyErr_Occurred())
        Py_DECREF(window);
    else
        result = window;
done:
    for (size_t i = 0; i < sizeof(USED); i++)
        Py_XDECREF(r->opcodes[USED[i]]);
    Py_XDECREF(r->no_tag);
    return result;
}

const char kernel_writes_doc[] =
    "writes(type, items, vbuckets, prefix, extras, most, most_bytes) -> list\n\n"
    "The next requests of documents: at most `most`, and no more once they have `most_bytes`.\n\n"
    "`items` is an iterator over (key, value); None for the value deletes.";

PyObject *kernel_writes(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Requests r = {0};
    if (!PyArg_ParseTuple(arguments, "OOIy#y#nn", &r.type, &r.items, &r.vbuckets, &r.prefix, &r.prefix_bytes, &r.extras,
                          &r.extras_bytes, &r.most, &r.most_bytes))
        return NULL;
    return window_of(&r, 1);
}

const char kernel_reads_doc[] = "reads(type, keys, vbuckets, prefix, most, most_bytes) -> list\n\n"
                                "The next requests that read documents; as `writes`.";

PyObject *kernel_reads(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Requests r = {0};
    if (!PyArg_ParseTuple(arguments, "OOIy#nn", &r.type, &r.items, &r.vbuckets, &r.prefix, &r.prefix_bytes, &r.most,
                          &r.most_bytes))
        return NULL;
    return window_of(&r, 0);
}

/* ------------------------------------------------------------------------------------------------------- answers */

enum { ANSWERED_FIELDS = 8 };

INLINE PyObject *part(const uint8_t *p, uint32_t length) {
    return PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)length);
}

/* The answer at `p`, whose parts lie within `body` bytes; NULL with an error. */
static PyObject *answer_at(PyTypeObject *type, const uint8_t *p, uint32_t framing, uint32_t extras, uint32_t key,
                           uint32_t body) {
    PyObject *row = new_row(type, ANSWERED_FIELDS);
    if (!row)
        return NULL;
    const uint8_t *extras_at = p + HEADER_BYTES + framing, *key_at = extras_at + extras, *value_at = key_at + key;
    if (put(row, 0, PyLong_FromLong(u16_at(p + 6))) && put(row, 1, PyLong_FromLong(p[5])) &&
        put(row, 2, PyLong_FromUnsignedLongLong(u64_at(p + 16))) && put(row, 3, part(extras_at, extras)) &&
        put(row, 4, part(value_at, body - framing - extras - key)) && put(row, 5, part(key_at, key)) &&
        put(row, 6, PyLong_FromLong(p[1])) && put(row, 7, PyLong_FromUnsignedLong(u32_at(p + OPAQUE_AT))))
        return row;
    Py_DECREF(row);
    return NULL;
}

const char kernel_answers_doc[] =
    "answers(type, buffer, most) -> (list, bytes)\n\n"
    "The whole answers at the beginning of received bytes, at most `most`, and the bytes that they take.\n\n"
    "It stops before a header that is none of an answer.";

PyObject *kernel_answers(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *type, *found;
    Py_buffer buffer;
    Py_ssize_t most, at = 0;
    if (!PyArg_ParseTuple(arguments, "Oy*n", &type, &buffer, &most))
        return NULL;
    found = check_type(type) ? PyList_New(0) : NULL;
    while (found && PyList_Size(found) < most && buffer.len - at >= HEADER_BYTES) {
        const uint8_t *p = (const uint8_t *)buffer.buf + at;
        uint32_t framing = 0, key = u16_at(p + 2), extras = p[4], body = u32_at(p + 8);
        if (p[0] == FLEX_RESPONSE) {
            framing = p[2];
            key = p[3];
        } else if (p[0] != RESPONSE) {
            break;
        }
        if (framing + extras + key > body || body > ANSWER_BODY_MAX ||
            (Py_ssize_t)body > buffer.len - at - HEADER_BYTES)
            break;
        PyObject *answer = answer_at((PyTypeObject *)type, p, framing, extras, key, body);
        if (!answer || PyList_Append(found, answer) < 0)
            Py_CLEAR(found);
        Py_XDECREF(answer);
        at += HEADER_BYTES + (Py_ssize_t)body;
    }
    PyBuffer_Release(&buffer);
    return found ? Py_BuildValue("Nn", found, at) : NULL;
}

/* ------------------------------------------------------------------------------------------------------- results */

enum { SUCCESS = 0, NOT_FOUND = 1, TOKEN_FIELDS = 4, TOKEN_BYTES = 16, DOCUMENT_FIELDS = 4, FLAGS_BYTES = 4 };

/* A part of an answer, borrowed. */
INLINE PyObject *field(PyObject *row, Py_ssize_t place) { return PyTuple_GetItem(row, place); }

/* The extras of an answer, if they have this length; NULL otherwise. */
INLINE const uint8_t *extras_of(PyObject *answer, Py_ssize_t length) {
    PyObject *extras = field(answer, 3);
    return PyBytes_Size(extras) == length ? (const uint8_t *)PyBytes_AsString(extras) : NULL;
}

static PyObject *token_of(PyTypeObject *type, PyObject *operation, PyObject *answer) {
    const uint8_t *extras = extras_of(answer, TOKEN_BYTES);
    PyObject *row = new_row(type, TOKEN_FIELDS);
    if (row && put(row, 0, Py_NewRef(field(operation, 1))) &&
        put(row, 1, PyLong_FromUnsignedLongLong(extras ? u64_at(extras) : 0)) &&
        put(row, 2, PyLong_FromUnsignedLongLong(extras ? u64_at(extras + 8) : 0)) &&
        put(row, 3, Py_NewRef(field(answer, 2))))
        return row;
    Py_XDECREF(row);
    return NULL;
}

static PyObject *document_of(PyTypeObject *type, PyObject *answer) {
    const uint8_t *extras = extras_of(answer, FLAGS_BYTES);
    PyObject *row = new_row(type, DOCUMENT_FIELDS);
    if (row && put(row, 0, Py_NewRef(field(answer, 4))) &&
        put(row, 1, PyLong_FromUnsignedLong(extras ? u32_at(extras) : 0)) &&
        put(row, 2, Py_NewRef(field(answer, 2))) && put(row, 3, Py_NewRef(field(answer, 1))))
        return row;
    Py_XDECREF(row);
    return NULL;
}

const char kernel_results_doc[] =
    "results(type, operations, answers) -> list\n\n"
    "The tokens of writes, or the documents of reads, up to the first refusal: the list is shorter then.\n\n"
    "`operations` and `answers` are tuples of equal number as the other functions make them. The result is None for a\n"
    "document that does not exist, and for its deletion.";

PyObject *kernel_results(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *type, *operations, *answers;
    if (!PyArg_ParseTuple(arguments, "OO!O!", &type, &PyList_Type, &operations, &PyList_Type, &answers))
        return NULL;
    PyObject *found = check_type(type) ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; found && i < PyList_Size(answers) && i < PyList_Size(operations); i++) {
        PyObject *operation = PyList_GetItem(operations, i), *answer = PyList_GetItem(answers, i), *result;
        if (!PyTuple_Check(operation) || PyTuple_Size(operation) != OPERATION_FIELDS || !PyTuple_Check(answer) ||
            PyTuple_Size(answer) != ANSWERED_FIELDS || !PyBytes_Check(field(answer, 3))) {
            PyErr_SetString(PyExc_TypeError, "no operation, or no answer");
            Py_CLEAR(found);
            break;
        }
        long status = PyLong_AsLong(field(answer, 0)), opcode = PyLong_AsLong(field(operation, 0));
        if (status == NOT_FOUND && opcode != SET)
            result = Py_NewRef(Py_None);
        else if (status == SUCCESS)
            result = opcode == GET ? document_of((PyTypeObject *)type, answer)
                                   : token_of((PyTypeObject *)type, operation, answer);
        else
            break;
        if (!result || PyList_Append(found, result) < 0)
            Py_CLEAR(found);
        Py_XDECREF(result);
    }
    if (found && PyErr_Occurred())
        Py_CLEAR(found);
    return found;
}
