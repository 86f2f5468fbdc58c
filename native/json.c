/* Whether a text is JSON, as `dcpstream.model.json_text.is_json` decides it: one value in UTF-8, no NaN, no Infinity.
 *
 * Python refuses texts that are nested too deeply for its stack. Deep texts are left to it.
 */

#include "kernel.h"

enum {
    MAX_DEPTH = 64, /* one bit each: whether the container is an object */
    DELETE = 0x7F,
};

typedef struct {
    const uint8_t *at, *end;
} Text;

static void skip_space(Text *text) {
    while (text->at < text->end &&
           (*text->at == ' ' || *text->at == '\n' || *text->at == '\r' || *text->at == '\t'))
        text->at++;
}

/* Pass one character of more than a byte; false if it is not UTF-8. */
static int pass_wide(Text *text) {
    const uint8_t *p = text->at;
    size_t left = (size_t)(text->end - p);
    uint32_t number;
    int more;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        more = 1;
        number = p[0] & 0x1F;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        more = 2;
        number = p[0] & 0x0F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        more = 3;
        number = p[0] & 0x07;
    } else {
        return 0;
    }
    if (left <= (size_t)more)
        return 0; /* a string needs its quote, too */
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        number = number << 6 | (p[i] & 0x3F);
    }
    if ((more == 2 && (number < 0x800 || (number >= 0xD800 && number <= 0xDFFF))) ||
        (more == 3 && (number < 0x10000 || number > 0x10FFFF)))
        return 0;
    text->at += more + 1;
    return 1;
}

static int is_hex(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* Pass a string, from behind its first quote on; false if it is none. */
static int pass_string(Text *text) {
    while (text->at < text->end) {
        uint8_t byte = *text->at;
        if (byte == '"') {
            text->at++;
            return 1;
        }
        if (byte == '\\') {
            if (text->end - text->at < 2)
                return 0;
            uint8_t escaped = text->at[1];
            text->at += 2;
            if (escaped == 'u') {
                if (text->end - text->at < 4)
                    return 0;
                for (int i = 0; i < 4; i++)
                    if (!is_hex(text->at[i]))
                        return 0;
                text->at += 4;
            } else if (!escaped || !strchr("\"\\/bfnrt", escaped)) {
                return 0;
            }
        } else if (byte > DELETE) {
            if (!pass_wide(text))
                return 0;
        } else if (byte < ' ') {
            return 0;
        } else {
            text->at++;
        }
    }
    return 0;
}

/* Pass digits; how many. */
static size_t pass_digits(Text *text) {
    const uint8_t *from = text->at;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9')
        text->at++;
    return (size_t)(text->at - from);
}

static int pass_number(Text *text) {
    if (*text->at == '-')
        text->at++;
    if (text->at < text->end && *text->at == '0')
        text->at++;
    else if (!pass_digits(text))
        return 0;
    if (text->at < text->end && *text->at == '.') {
        text->at++;
        if (!pass_digits(text))
            return 0;
    }
    if (text->at < text->end && (*text->at == 'e' || *text->at == 'E')) {
        text->at++;
        if (text->at < text->end && (*text->at == '+' || *text->at == '-'))
            text->at++;
        if (!pass_digits(text))
            return 0;
    }
    return 1;
}

static int pass_word(Text *text, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
        return 0;
    text->at += length;
    return 1;
}

static int pass_scalar(Text *text) {
    switch (*text->at) {
    case '"':
        text->at++;
        return pass_string(text);
    case 't':
        return pass_word(text, "true");
    case 'f':
        return pass_word(text, "false");
    case 'n':
        return pass_word(text, "null");
    default:
        return (*text->at == '-' || (*text->at >= '0' && *text->at <= '9')) && pass_number(text);
    }
}

/* Pass the name of a member and its colon, and the space around them. */
static int pass_name(Text *text) {
    if (text->at == text->end || *text->at != '"')
        return 0;
    text->at++;
    if (!pass_string(text))
        return 0;
    skip_space(text);
    if (text->at == text->end || *text->at != ':')
        return 0;
    text->at++;
    skip_space(text);
    return 1;
}

int json_text(const uint8_t *bytes, size_t length) {
    Text text = {bytes, bytes + length};
    uint64_t objects = 0; /* whether each open container is an object, the innermost in the lowest bit */
    int depth = 0;
    skip_space(&text);
    for (;;) {
        /* A value begins here. */
        if (text.at == text.end)
            return NOT_JSON;
        if (*text.at == '{' || *text.at == '[') {
            int is_object = *text.at == '{';
            if (depth == MAX_DEPTH)
                return TOO_DEEP;
            text.at++;
            skip_space(&text);
            if (text.at < text.end && *text.at == (is_object ? '}' : ']')) {
                text.at++;
            } else {
                objects = objects << 1 | (unsigned)is_object;
                depth++;
                if (is_object && !pass_name(&text))
                    return NOT_JSON;
                continue;
            }
        } else if (!pass_scalar(&text)) {
            return NOT_JSON;
        }
        /* A value ended here; so may the containers around it. */
        for (;;) {
            skip_space(&text);
            if (!depth)
                return text.at == text.end ? IS_JSON : NOT_JSON;
            if (text.at == text.end)
                return NOT_JSON;
            uint8_t byte = *text.at++;
            if (byte == ',') {
                skip_space(&text);
                if (objects & 1 && !pass_name(&text))
                    return NOT_JSON;
                break;
            }
            if (byte != (objects & 1 ? '}' : ']'))
                return NOT_JSON;
            objects >>= 1;
            depth--;
        }
    }
}

const char kernel_is_json_doc[] = "is_json(value) -> whether the bytes are one JSON text in UTF-8; None if it is too deep";

PyObject *kernel_is_json(PyObject *Py_UNUSED(module), PyObject *value) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(value, &bytes, &length) < 0)
        return NULL;
    switch (json_text((const uint8_t *)bytes, (size_t)length)) {
    case IS_JSON:
        Py_RETURN_TRUE;
    case NOT_JSON:
        Py_RETURN_FALSE;
    default:
        Py_RETURN_NONE;
    }
}
