/* For dcpstream.arrow: rows as the columns of a table of changes, in one Arrow batch.
 *
 * `table` does what the columns of plain Python do one after the other (dcpstream.arrow.changes). It first measures
 * the texts and looks for rows that it leaves to Python: compressed values, values with attributes, keys that are not
 * UTF-8, collections without a name. Then it takes memory for all columns at once, fills it, and gives the batch to
 * Arrow through Arrow's C data interface. Columns that are already as the table has them, such as the seqno, are not
 * copied: the batch refers to the memory of the rows.
 */

#include "kernel.h"

/* https://arrow.apache.org/docs/format/CDataInterface.html */
typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

/* The columns of numbers, in the order in which `decode` fills them; others may follow. */
enum { OPCODE, DATATYPE, VBUCKET, CAS, SEQNO, REV, FLAGS, EXPIRY, OPAQUE, COLLECTION, NUMBERS };
static const size_t WIDTH[NUMBERS] = {1, 1, 2, 8, 8, 8, 4, 4, 4, 4};

/* What a column of the table holds. dcpstream.arrow.native_table has the same numbers. */
enum {
    NULL_NUMBERS,
    NULL_TEXTS,
    NULL_MAPS,
    KEY,
    VALUE,
    VALUE_AS_TEXT,
    NO_ATTRIBUTES,
    KIND_OF_CHANGE,
    OP,
    SCOPE_NAME,
    COLLECTION_NAME,
    BRANCH,
    VBUCKET_NUMBER,
    DATATYPE_NUMBER,
    SEQNO_NUMBER,
    REV_NUMBER,
    CAS_NUMBER,
    FLAGS_NUMBER,
    TIME_OF_CAS,
    TIME_OF_EXPIRY,
    KINDS
};

/* Why columns are left to Python, as bits. dcpstream.arrow.native_table has the same numbers. */
enum { PACKED_VALUES = 1, KEYS_NO_TEXT = 2, VALUES_NO_TEXT = 4, UNKNOWN_COLLECTION = 8 };

/* The lists of texts, in the order of the caller, and the numbers of the first one. */
enum { CHANGE_TEXTS, OP_TEXTS, BRANCH_TEXTS, SCOPE_TEXTS, COLLECTION_TEXTS, LISTS };
enum { INSERT, UPDATE, DELETE };

enum {
    CHOICES = 3,          /* mutation, deletion, expiration, whose opcodes are adjacent; insert, update, delete */
    PACKED = 0x02 | 0x04, /* datatypes: compressed, with attributes */
    CAS_LOGICAL_BITS = 16,
    COLUMNS_MAX = 64,
    ALIGNMENT = 64,
    BLOCK = 32,    /* bytes that are copied at once; as many follow the last text of a list */
    SHORT_RUN = 4, /* rows up to which a text is copied for each of them */
    /* Rows from which other threads may run meanwhile. */
    RELEASE_ROWS = 512,
};

typedef struct {
    const uint8_t *bytes, *bounds; /* bounds: int32 each, not aligned */
    size_t size, count;
} Texts;

typedef struct {
    ArrowArray array, entries, names, contents; /* the others belong to maps */
    ArrowArray *child, *parts[2];
    const void *buffers[3], *entry_buffers[1], *part_buffers[3];
} Column;

/* What stands at the begin of the batch's memory. */
typedef struct {
    ArrowArray batch;
    ArrowArray *children[COLUMNS_MAX];
    const void *buffers[1];
    PyObject *rows, *memory; /* owned; both are held as long as the batch lives */
    Column column[COLUMNS_MAX];
} Head;

typedef struct {
    size_t rows;
    const uint8_t *number[NUMBERS]; /* of the first row, as those below */
    const int32_t *key_offsets, *value_offsets;
    const uint8_t *key, *value;
    size_t key_bytes, value_bytes;
    const uint8_t *kinds;
    size_t columns;
    Texts list[LISTS];
    const uint8_t *collection_ids; /* u32 each, rising, not aligned */
    /* Found by `measure`. */
    size_t text_bytes[COLUMNS_MAX], nulls[COLUMNS_MAX], counts[2][CHOICES]; /* counts: by CHANGE_TEXTS and OP_TEXTS */
    int left; /* bits, see above */
    const char *wrong;
} Table;

INLINE uint64_t u64_of(const Table *t, int column, size_t row) {
    uint64_t number;
    memcpy(&number, t->number[column] + row * sizeof(number), sizeof(number));
    return number;
}

INLINE uint32_t u32_of(const Table *t, int column, size_t row) {
    uint32_t number;
    memcpy(&number, t->number[column] + row * sizeof(number), sizeof(number));
    return number;
}

INLINE uint16_t u16_of(const Table *t, int column, size_t row) {
    uint16_t number;
    memcpy(&number, t->number[column] + row * sizeof(number), sizeof(number));
    return number;
}

INLINE int is_gone(const Table *t, size_t row) { return t->number[OPCODE][row] != MUTATION; }

/* -------------------------------------------------------------------------------------------------------- texts */

/* Which of the few texts of its column a row has. */
INLINE size_t choice_of(const Table *t, int kind, size_t row) {
    const size_t opcode = t->number[OPCODE][row] - (size_t)MUTATION;
    return kind == OP ? opcode : opcode ? DELETE : u64_of(t, REV, row) == 1 ? INSERT : UPDATE;
}

/* The number by which a row's text is found: adjacent rows with the same number have the same text. */
INLINE uint32_t number_of(const Table *t, int kind, size_t row) {
    return kind == BRANCH ? u16_of(t, VBUCKET, row) : u32_of(t, COLLECTION, row);
}

/* The place of a collection among the known ones; their number if it is not there. */
static size_t known_collection(const Table *t, uint32_t id) {
    size_t low = 0, high = t->list[COLLECTION_TEXTS].count;
    const size_t none = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint32_t found;
        memcpy(&found, t->collection_ids + middle * sizeof(found), sizeof(found));
        if (found == id)
            return middle;
        if (found < id)
            low = middle + 1;
        else
            high = middle;
    }
    return none;
}

/* A text's bytes and length; false if there is none of that number, or if it lies outside of its buffer. */
INLINE int text_at(const Table *t, int list, size_t number, const uint8_t **text, size_t *length) {
    const Texts *texts = &t->list[list];
    int32_t bounds[2];
    if (UNLIKELY(number >= texts->count))
        return 0;
    memcpy(bounds, texts->bounds + number * sizeof(int32_t), sizeof(bounds));
    if (UNLIKELY(bounds[0] < 0 || bounds[1] < bounds[0] || (size_t)bounds[1] + BLOCK > texts->size))
        return 0;
    *text = texts->bytes + bounds[0];
    *length = (size_t)(bounds[1] - bounds[0]);
    return 1;
}

/* The same text for all rows from `first` on, and where each of them ends. */
INLINE void repeat(const uint8_t *text, size_t length, size_t first, size_t stop, int32_t *offsets, uint8_t *bytes) {
    uint8_t *const to = bytes + offsets[first];
    const size_t total = length * (stop - first);
    if (stop - first <= SHORT_RUN && length <= BLOCK) {
        for (size_t done = 0; done < total; done += length)
            memcpy(to + done, text, BLOCK); /* what is too much is overwritten by the next text */
    } else if (total) {
        memcpy(to, text, length);
        for (size_t done = length; done < total; done *= 2) /* then twice as many each time */
            memcpy(to + done, to, done < total - done ? done : total - done);
    }
    const int32_t begin = offsets[first];
    for (size_t row = first; row < stop; row++)
        offsets[row + 1] = begin + (int32_t)((row - first + 1) * length);
}

static int set_text_bytes(Table *t, size_t column, uint64_t bytes) {
    if (bytes > INT32_MAX)
        t->wrong = "too many bytes of texts for one batch";
    t->text_bytes[column] = (size_t)bytes;
    return 1;
}

/* Columns with one of three texts in each row, in no order. */
INLINE int measure_choices(Table *t, int kind, size_t column) {
    const int list = kind == OP ? OP_TEXTS : CHANGE_TEXTS;
    size_t length, second = 0, third = 0;
    const uint8_t *text;
    uint64_t bytes = 0;
    for (size_t row = 0; row < t->rows; row++) {
        const size_t choice = choice_of(t, kind, row);
        second += choice == 1;
        third += choice == 2;
    }
    t->counts[list][0] = t->rows - second - third;
    t->counts[list][1] = second;
    t->counts[list][2] = third;
    for (size_t choice = 0; choice < CHOICES; choice++) {
        if (!text_at(t, list, choice, &text, &length) || length > BLOCK)
            return 0;
        bytes += (uint64_t)t->counts[list][choice] * length;
    }
    return set_text_bytes(t, column, bytes);
}

INLINE void fill_choices(const Table *t, int kind, int32_t *offsets, uint8_t *bytes) {
    const int list = kind == OP ? OP_TEXTS : CHANGE_TEXTS;
    const uint8_t *text[CHOICES];
    size_t length[CHOICES];
    for (size_t choice = 0; choice < CHOICES; choice++) {
        text_at(t, list, choice, &text[choice], &length[choice]);
        if (t->counts[list][choice] == t->rows) {
            repeat(text[choice], length[choice], 0, t->rows, offsets, bytes);
            return;
        }
    }
    int32_t at = 0;
    for (size_t row = 0; row < t->rows; row++) {
        const size_t choice = choice_of(t, kind, row);
        memcpy(bytes + at, text[choice], BLOCK);
        at += (int32_t)length[choice];
        offsets[row + 1] = at;
    }
}

/* Adjacent rows with one text. */
typedef struct {
    size_t stop;
    const uint8_t *text; /* NULL for rows that are null */
    size_t length;
} Run;

/* The run that begins with a row; false if its text is not there, although it must be. */
INLINE int next_run(const Table *t, int kind, size_t row, Run *run) {
    const uint32_t number = number_of(t, kind, row);
    size_t stop = row + 1;
    while (stop < t->rows && number_of(t, kind, stop) == number)
        stop++;
    run->stop = stop;
    const int list = kind == BRANCH ? BRANCH_TEXTS : kind == SCOPE_NAME ? SCOPE_TEXTS : COLLECTION_TEXTS;
    if (text_at(t, list, kind == BRANCH ? number : known_collection(t, number), &run->text, &run->length)) {
        if (kind == BRANCH && !run->length) /* a vbucket whose branch is not known */
            run->text = NULL;
        return 1;
    }
    run->text = NULL;
    run->length = 0;
    return kind == BRANCH;
}

INLINE int measure_runs(Table *t, int kind, size_t column) {
    Run run;
    uint64_t bytes = 0;
    for (size_t row = 0; row < t->rows; row = run.stop) {
        if (!next_run(t, kind, row, &run))
            return 0;
        bytes += (run.stop - row) * run.length;
        if (!run.text)
            t->nulls[column] += run.stop - row;
    }
    return set_text_bytes(t, column, bytes);
}

INLINE void fill_runs(const Table *t, int kind, int32_t *offsets, uint8_t *bytes, uint8_t *validity) {
    Run run;
    for (size_t row = 0; row < t->rows; row = run.stop) {
        next_run(t, kind, row, &run);
        repeat(run.text, run.length, row, run.stop, offsets, bytes);
        if (UNLIKELY(!run.text && validity))
            for (size_t each = row; each < run.stop; each++)
                validity[each / 8] &= (uint8_t)~(1u << each % 8);
    }
}

/* Where the first byte above 127 is; `size` if there is none. */
static size_t ascii_bytes(const uint8_t *bytes, size_t size) {
    enum { WORDS = 8 };
    const uint64_t high_bits = 0x8080808080808080u;
    size_t at = 0;
    for (; size - at >= WORDS * sizeof(uint64_t); at += WORDS * sizeof(uint64_t)) {
        uint64_t words[WORDS], seen = 0;
        memcpy(words, bytes + at, sizeof(words));
        for (int i = 0; i < WORDS; i++)
            seen |= words[i];
        if (UNLIKELY(seen & high_bits))
            break;
    }
    while (at < size && bytes[at] < 0x80)
        at++;
    return at;
}

INLINE int continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* The bytes of the character above ASCII at `p`, in its shortest form and no surrogate; 0 if there is none. */
static size_t character_bytes(const uint8_t *p, size_t size) {
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        return size >= 2 && continues(p[1]) ? 2 : 0;
    if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        const uint8_t low = p[0] == 0xE0 ? 0xA0 : 0x80, high = p[0] == 0xED ? 0x9F : 0xBF;
        return size >= 3 && p[1] >= low && p[1] <= high && continues(p[2]) ? 3 : 0;
    }
    if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        const uint8_t low = p[0] == 0xF0 ? 0x90 : 0x80, high = p[0] == 0xF4 ? 0x8F : 0xBF;
        return size >= 4 && p[1] >= low && p[1] <= high && continues(p[2]) && continues(p[3]) ? 4 : 0;
    }
    return 0;
}

/* Whether each of the rows' bytes is UTF-8. */
static int are_texts(const uint8_t *bytes, const int32_t *offsets, size_t rows) {
    const size_t first = (size_t)offsets[0], size = (size_t)offsets[rows];
    size_t at = first + ascii_bytes(bytes + first, size - first);
    if (LIKELY(at == size))
        return 1;
    while (at < size) {
        size_t length = character_bytes(bytes + at, size - at);
        if (!length)
            return 0;
        at += length;
        at += ascii_bytes(bytes + at, size - at);
    }
    for (size_t row = 1; row < rows; row++) /* no character reaches from one row into the next */
        if ((size_t)offsets[row] < size && continues(bytes[offsets[row]]))
            return 0;
    return 1;
}

/* ------------------------------------------------------------------------------------------------------ measure */

/* Whether offsets rise and stay within the bytes. */
static int are_sound(const int32_t *offsets, size_t rows, size_t bytes) {
    int falls = 0;
    for (size_t row = 0; row < rows; row++)
        falls |= offsets[row + 1] < offsets[row];
    return !falls && offsets[0] >= 0 && (size_t)offsets[rows] <= bytes;
}

static int any_packed(const Table *t) {
    uint8_t seen = 0;
    for (size_t row = 0; row < t->rows; row++)
        seen |= t->number[DATATYPE][row];
    if (LIKELY(!(seen & PACKED)))
        return 0;
    /* A stream without values that keeps the datatypes has such rows with empty values. */
    for (size_t row = 0; row < t->rows; row++)
        if (t->number[DATATYPE][row] & PACKED && t->value_offsets[row] < t->value_offsets[row + 1])
            return 1;
    return 0;
}

/* Rows without a body: what a deletion or expiration left is empty. */
static size_t bodies_gone(const Table *t) {
    size_t count = 0;
    for (size_t row = 0; row < t->rows; row++)
        count += (size_t)(is_gone(t, row) & (t->value_offsets[row] == t->value_offsets[row + 1]));
    return count;
}

/* Count what each column needs, and find what is left to Python. */
static void measure(Table *t) {
    uint8_t highest = 0, lowest = UINT8_MAX;
    for (size_t row = 0; row < t->rows; row++) {
        const uint8_t opcode = t->number[OPCODE][row];
        highest = opcode > highest ? opcode : highest;
        lowest = opcode < lowest ? opcode : lowest;
    }
    if (t->rows && (lowest < MUTATION || highest >= MUTATION + CHOICES))
        t->wrong = "a row that is no change";
    if (!are_sound(t->key_offsets, t->rows, t->key_bytes) || !are_sound(t->value_offsets, t->rows, t->value_bytes))
        t->wrong = "a key or a value outside of its buffer";
    if (t->wrong)
        return;
    for (size_t column = 0; column < t->columns; column++) {
        size_t zeros = 0;
        switch (t->kinds[column]) {
        case KEY:
            t->left |= are_texts(t->key, t->key_offsets, t->rows) ? 0 : KEYS_NO_TEXT;
            break;
        case VALUE_AS_TEXT:
            if (!any_packed(t))
                t->left |= are_texts(t->value, t->value_offsets, t->rows) ? 0 : VALUES_NO_TEXT;
            /* fall through */
        case VALUE:
            t->nulls[column] = highest == MUTATION ? 0 : bodies_gone(t);
            /* fall through */
        case NO_ATTRIBUTES:
            t->left |= any_packed(t) ? PACKED_VALUES : 0;
            break;
        case KIND_OF_CHANGE:
            if (!measure_choices(t, KIND_OF_CHANGE, column))
                t->wrong = "a kind of change without a short text";
            break;
        case OP:
            if (!measure_choices(t, OP, column))
                t->wrong = "an opcode without a short text";
            break;
        case SCOPE_NAME:
            t->left |= measure_runs(t, SCOPE_NAME, column) ? 0 : UNKNOWN_COLLECTION;
            break;
        case COLLECTION_NAME:
            t->left |= measure_runs(t, COLLECTION_NAME, column) ? 0 : UNKNOWN_COLLECTION;
            break;
        case BRANCH:
            measure_runs(t, BRANCH, column);
            break;
        case TIME_OF_CAS:
            for (size_t row = 0; row < t->rows; row++)
                zeros += u64_of(t, CAS, row) == 0;
            t->nulls[column] = zeros;
            break;
        case TIME_OF_EXPIRY:
            for (size_t row = 0; row < t->rows; row++)
                zeros += u32_of(t, EXPIRY, row) == 0;
            t->nulls[column] = zeros;
            break;
        default:
            break;
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- fill */

/* Memory that is handed out piece by piece; without a begin, its pieces are only counted. */
typedef struct {
    uint8_t *begin;
    size_t used;
} Memory;

static void *piece(Memory *memory, size_t size) {
    void *place = memory->begin ? memory->begin + memory->used : NULL;
    memory->used += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

/* Give a column its pieces, and fill them if there is memory. `zeros` serves columns that are all null. */
static void build(const Table *t, size_t number, Memory *memory, const uint8_t *zeros, Column *column) {
    const size_t rows = t->rows, nulls = t->nulls[number];
    const int kind = t->kinds[number];
    const void *fixed = NULL, *offsets = NULL, *bytes = NULL;
    uint8_t *validity = NULL;
    int64_t n_buffers = 2;
    size_t null_count = nulls;
    int copied = -1;
    if (nulls && nulls < rows && (validity = piece(memory, (rows + 7) / 8)))
        memset(validity, 0xFF, (rows + 7) / 8);
    switch (kind) {
    case NULL_TEXTS:
        n_buffers = 3;
        /* fall through */
    case NULL_NUMBERS:
    case NULL_MAPS:
    case NO_ATTRIBUTES:
        null_count = rows;
        break;
    case KEY:
        n_buffers = 3;
        offsets = t->key_offsets;
        bytes = t->key;
        break;
    case VALUE:
    case VALUE_AS_TEXT:
        n_buffers = 3;
        offsets = t->value_offsets;
        bytes = t->value;
        for (size_t row = 0; validity && row < rows; row++)
            if (is_gone(t, row) && t->value_offsets[row] == t->value_offsets[row + 1])
                validity[row / 8] &= (uint8_t)~(1u << row % 8);
        break;
    case KIND_OF_CHANGE:
    case OP:
    case SCOPE_NAME:
    case COLLECTION_NAME:
    case BRANCH: {
        n_buffers = 3;
        if (nulls && nulls == rows)
            break;
        int32_t *places = piece(memory, (rows + 1) * sizeof(int32_t));
        uint8_t *texts = piece(memory, t->text_bytes[number] + BLOCK);
        offsets = places;
        bytes = texts;
        if (!places)
            break;
        places[0] = 0;
        if (kind == KIND_OF_CHANGE)
            fill_choices(t, KIND_OF_CHANGE, places, texts);
        else if (kind == OP)
            fill_choices(t, OP, places, texts);
        else if (kind == BRANCH)
            fill_runs(t, BRANCH, places, texts, validity);
        else
            fill_runs(t, kind == SCOPE_NAME ? SCOPE_NAME : COLLECTION_NAME, places, texts, validity);
        break;
    }
    case VBUCKET_NUMBER:
    case DATATYPE_NUMBER: {
        int32_t *numbers = piece(memory, rows * sizeof(int32_t));
        fixed = numbers;
        for (size_t row = 0; numbers && row < rows; row++)
            numbers[row] = kind == VBUCKET_NUMBER ? u16_of(t, VBUCKET, row) : t->number[DATATYPE][row];
        break;
    }
    case SEQNO_NUMBER:
        copied = SEQNO;
        break;
    case REV_NUMBER:
        copied = REV;
        break;
    case CAS_NUMBER:
        copied = CAS;
        break;
    case FLAGS_NUMBER:
        copied = FLAGS;
        break;
    default: { /* times in microseconds: of a clock in nanoseconds with a counter in its low bits, or of seconds */
        if (nulls && nulls == rows)
            break;
        int64_t *times = piece(memory, rows * sizeof(int64_t));
        fixed = times;
        for (size_t row = 0; times && row < rows; row++)
            times[row] = kind == TIME_OF_EXPIRY
                             ? (int64_t)u32_of(t, EXPIRY, row) * 1000000
                             : (int64_t)((u64_of(t, CAS, row) >> CAS_LOGICAL_BITS << CAS_LOGICAL_BITS) / 1000);
        for (size_t row = 0; validity && row < rows; row++)
            if (!times[row] && (kind == TIME_OF_EXPIRY || !u64_of(t, CAS, row)))
                validity[row / 8] &= (uint8_t)~(1u << row % 8);
    }
    }
    if (!column)
        return;
    if (copied >= 0)
        fixed = t->number[copied];
    const int all_null = null_count && null_count == rows;
    column->array = (ArrowArray){.length = (int64_t)rows,
                                 .null_count = (int64_t)null_count,
                                 .n_buffers = n_buffers,
                                 .buffers = column->buffers};
    column->buffers[0] = all_null ? zeros : validity;
    column->buffers[1] = n_buffers == 3 ? offsets : fixed;
    column->buffers[2] = bytes;
    if (!column->buffers[1])
        column->buffers[1] = zeros;
    if (!column->buffers[2])
        column->buffers[2] = zeros;
    if (kind != NULL_MAPS && kind != NO_ATTRIBUTES)
        return;
    column->part_buffers[0] = NULL;
    column->part_buffers[1] = column->part_buffers[2] = zeros;
    column->names = column->contents = (ArrowArray){.n_buffers = 3, .buffers = column->part_buffers};
    column->parts[0] = &column->names;
    column->parts[1] = &column->contents;
    column->entry_buffers[0] = NULL;
    column->entries = (ArrowArray){
        .n_buffers = 1, .n_children = 2, .buffers = column->entry_buffers, .children = column->parts};
    column->child = &column->entries;
    column->array.n_children = 1;
    column->array.children = &column->child;
}

static void release_part(ArrowArray *array) {
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release)
            array->children[i]->release(array->children[i]);
    array->release = NULL;
}

/* Arrow has moved the batch itself, but none of its columns, and may call from any thread. */
static void release_batch(ArrowArray *batch) {
    const Head *head = batch->private_data;
    PyObject *rows = head->rows, *memory = head->memory;
    release_part(batch);
    if (!Py_IsInitialized())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(rows);
    Py_DECREF(memory); /* the batch's own place is in it */
    PyGILState_Release(state);
}

static void set_release(ArrowArray *array) {
    array->release = release_part;
    for (int64_t i = 0; i < array->n_children; i++)
        set_release(array->children[i]);
}

/* Count the memory of the batch, or fill it. */
static void build_all(const Table *t, Memory *memory) {
    Head *head = piece(memory, sizeof(Head) - sizeof(Column) * (COLUMNS_MAX - t->columns));
    const size_t zero_bytes = (t->rows + 1) * sizeof(uint64_t);
    uint8_t *zeros = piece(memory, zero_bytes);
    if (zeros)
        memset(zeros, 0, zero_bytes);
    for (size_t number = 0; number < t->columns; number++)
        build(t, number, memory, zeros, head ? &head->column[number] : NULL);
    if (!head)
        return;
    head->batch = (ArrowArray){.length = (int64_t)t->rows,
                               .n_buffers = 1,
                               .n_children = (int64_t)t->columns,
                               .buffers = head->buffers,
                               .children = head->children,
                               .private_data = head};
    head->buffers[0] = NULL;
    for (size_t number = 0; number < t->columns; number++)
        head->children[number] = &head->column[number].array;
    set_release(&head->batch);
    head->batch.release = release_batch;
}

/* ----------------------------------------------------------------------------------------------------- arguments */

typedef struct {
    Py_buffer buffers[NUMBERS + 5 + 2 * LISTS];
    int held;
} Held;

/* The bytes of an object, at least `size` of them and aligned for `width`; NULL with an error. */
static const uint8_t *hold(Held *held, PyObject *object, size_t size, size_t width, size_t *found) {
    Py_buffer *buffer = &held->buffers[held->held];
    if (!object || PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    held->held++;
    if ((size_t)buffer->len < size || (size && (uintptr_t)buffer->buf % width)) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes instead of %zd, or not aligned", buffer->len,
                     (Py_ssize_t)size);
        return NULL;
    }
    if (found)
        *found = (size_t)buffer->len;
    return buffer->buf ? buffer->buf : (const uint8_t *)"";
}

static int hold_rows(Table *t, Held *held, PyObject *rows, size_t first) {
    PyObject *numbers = PyTuple_GetItem(rows, 0);
    const size_t stop = first + t->rows;
    if (!numbers || !PyTuple_Check(numbers) || PyTuple_Size(numbers) < NUMBERS || PyTuple_Size(rows) < 5) {
        PyErr_SetString(PyExc_ValueError, "rows that are none");
        return 0;
    }
    for (int i = 0; i < NUMBERS; i++) {
        const uint8_t *bytes = hold(held, PyTuple_GetItem(numbers, i), stop * WIDTH[i], WIDTH[i], NULL);
        if (!bytes)
            return 0;
        t->number[i] = bytes + first * WIDTH[i];
    }
    const uint8_t *places[4];
    size_t sizes[4];
    for (int i = 0; i < 4; i++) { /* offsets and bytes of keys, the same of values */
        const size_t least = i % 2 ? 0 : (stop + 1) * sizeof(int32_t);
        places[i] = hold(held, PyTuple_GetItem(rows, i + 1), least, sizeof(int32_t), &sizes[i]);
        if (!places[i])
            return 0;
    }
    t->key_offsets = (const int32_t *)places[0] + first;
    t->key = places[1];
    t->key_bytes = sizes[1];
    t->value_offsets = (const int32_t *)places[2] + first;
    t->value = places[3];
    t->value_bytes = sizes[3];
    return 1;
}

static int hold_texts(Table *t, Held *held, PyObject *lists, PyObject *ids) {
    for (int i = 0; i < LISTS; i++) {
        PyObject *pair = PyTuple_GetItem(lists, i);
        if (!pair || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_ValueError, "texts that are no pair");
            return 0;
        }
        Texts *texts = &t->list[i];
        size_t size;
        texts->bounds = hold(held, PyTuple_GetItem(pair, 0), sizeof(int32_t), 1, &size);
        texts->bytes = texts->bounds ? hold(held, PyTuple_GetItem(pair, 1), 0, 1, &texts->size) : NULL;
        if (!texts->bytes)
            return 0;
        texts->count = size / sizeof(int32_t) - 1;
    }
    t->collection_ids = hold(held, ids, t->list[COLLECTION_TEXTS].count * sizeof(uint32_t), 1, NULL);
    return t->collection_ids != NULL;
}

/* The batch of rows that were measured; NULL with an error. */
static PyObject *batch_of(const Table *t, PyObject *rows, PyObject *take, PyObject *give, PyObject *schema) {
    Memory memory = {0};
    Py_buffer room;
    build_all(t, &memory);
    PyObject *taken = PyObject_CallFunction(take, "n", (Py_ssize_t)(memory.used + ALIGNMENT));
    PyObject *view = taken ? PyMemoryView_FromObject(taken) : NULL, *result = NULL;
    Py_XDECREF(taken);
    if (!view)
        return NULL;
    if (PyObject_GetBuffer(view, &room, PyBUF_WRITABLE) < 0) {
        Py_DECREF(view);
        return NULL;
    }
    uint8_t *begin = (uint8_t *)room.buf + (ALIGNMENT - (uintptr_t)room.buf % ALIGNMENT) % ALIGNMENT;
    const int fits = (size_t)room.len >= memory.used + ALIGNMENT;
    memory = (Memory){.begin = begin};
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "less memory than was asked for");
    } else if (t->rows >= RELEASE_ROWS) {
        Py_BEGIN_ALLOW_THREADS
        build_all(t, &memory);
        Py_END_ALLOW_THREADS
    } else {
        build_all(t, &memory);
    }
    PyBuffer_Release(&room);
    if (fits) {
        Head *head = (Head *)begin;
        head->rows = Py_NewRef(rows);
        head->memory = Py_NewRef(view);
        result = PyObject_CallFunction(give, "KO", (unsigned long long)(uintptr_t)&head->batch, schema);
        if (head->batch.release) /* Arrow did not take it */
            head->batch.release(&head->batch);
    }
    Py_DECREF(view);
    return result;
}

const char kernel_table_doc[] =
    "table(rows, first, stop, kinds, lists, collections, take, give, schema) -> batch or int\n\n"
    "The rows first:stop as the columns of a table of changes.\n\n"
    "`rows` begins with the columns of numbers as `decode` fills them, and offsets and bytes of keys and of values.\n"
    "`kinds` has one byte for each column of the schema. `lists` has five pairs of bounds (int32) and bytes: the texts\n"
    "of insert, update and delete; those of mutation, deletion and expiration; those of vbuuids by vbucket, empty if\n"
    "one is not known; names of scopes and of collections, in the order of `collections`, the rising ids as u32.\n"
    "`take(size)` returns memory, and `give(address, schema)` makes the batch of an ArrowArray.\n"
    "Returns: what `give` returned; or as bits what the kernel cannot build: 1 values that are compressed or have\n"
    "attributes, 2 keys that are not UTF-8, 4 values as texts that are not UTF-8, 8 names of an unknown collection.";

PyObject *kernel_table(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Table t = {0};
    Held held = {.held = 0};
    PyObject *rows, *lists, *collections, *take, *give, *schema, *result = NULL;
    Py_ssize_t first, stop;
    const char *kinds;
    Py_ssize_t columns;
    if (!PyArg_ParseTuple(arguments, "O!nny#O!OOOO", &PyTuple_Type, &rows, &first, &stop, &kinds, &columns,
                          &PyTuple_Type, &lists, &collections, &take, &give, &schema))
        return NULL;
    if (first < 0 || stop < first || stop >= INT32_MAX || columns > COLUMNS_MAX || PyTuple_Size(lists) != LISTS) {
        PyErr_SetString(PyExc_ValueError, "a wrong number of rows, columns or lists");
        return NULL;
    }
    t.rows = (size_t)(stop - first);
    t.kinds = (const uint8_t *)kinds;
    t.columns = (size_t)columns;
    for (size_t i = 0; i < t.columns; i++)
        if (t.kinds[i] >= KINDS) {
            PyErr_SetString(PyExc_ValueError, "a column of no kind");
            return NULL;
        }
    if (!hold_rows(&t, &held, rows, (size_t)first) || !hold_texts(&t, &held, lists, collections))
        goto release;
    if (t.rows >= RELEASE_ROWS) {
        Py_BEGIN_ALLOW_THREADS
        measure(&t);
        Py_END_ALLOW_THREADS
    } else {
        measure(&t);
    }
    if (t.wrong)
        PyErr_SetString(PyExc_ValueError, t.wrong);
    else
        result = t.left ? PyLong_FromLong(t.left) : batch_of(&t, rows, take, give, schema);
release:
    while (held.held > 0)
        PyBuffer_Release(&held.buffers[--held.held]);
    return result;
}
