/*
 * JSON strings, decoded in place: a decoded string is never longer than its text, so the writer never overtakes the reader.
 */
#include "json_reader.h"

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Four hex digits after "\u"; -1 where they are not. */
static long parse_hex4(struct reader *reader)
{
    long value = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        int digit = hex_value(*reader->at);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static char *put_utf8(char *to, unsigned long point)
{
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xC0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *to++ = (char)(0xE0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    } else {
        *to++ = (char)(0xF0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3F));
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    }
    return to;
}

static bool parse_unicode_escape(struct reader *reader, char **to)
{
    long point = parse_hex4(reader);
    if (point < 0)
        return reader_fail(reader, "expected four hex digits");
    if (point == 0)
        return reader_fail(reader, "a NUL character is not allowed");
    if (point >= 0xDC00 && point <= 0xDFFF)
        return reader_fail(reader, "half a surrogate pair");
    if (point >= 0xD800 && point <= 0xDBFF) {
        if (reader->at[0] != '\\' || reader->at[1] != 'u')
            return reader_fail(reader, "half a surrogate pair");
        reader->at += 2;
        long low = parse_hex4(reader);
        if (low < 0xDC00 || low > 0xDFFF)
            return reader_fail(reader, "half a surrogate pair");
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    }
    *to = put_utf8(*to, (unsigned long)point);
    return true;
}

static bool parse_escape(struct reader *reader, char **to)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char letter = *++reader->at;
    if (letter == 'u') {
        reader->at++;
        return parse_unicode_escape(reader, to);
    }
    for (int i = 0; letters[i] != '\0'; i++) {
        if (letters[i] == letter) {
            *(*to)++ = values[i];
            reader->at++;
            return true;
        }
    }
    return reader_fail(reader, "unknown escape");
}

/* The length of the UTF-8 sequence at `at`, 0 where it is malformed (overlong, surrogate, beyond U+10FFFF, cut). */
static int utf8_length(const unsigned char *at)
{
    unsigned char low = 0x80, high = 0xBF;
    int length;
    if (at[0] >= 0xC2 && at[0] <= 0xDF)
        length = 2;
    else if (at[0] >= 0xE0 && at[0] <= 0xEF)
        length = 3;
    else if (at[0] >= 0xF0 && at[0] <= 0xF4)
        length = 4;
    else
        return 0;
    if (at[0] == 0xE0)
        low = 0xA0;
    else if (at[0] == 0xED)
        high = 0x9F;
    else if (at[0] == 0xF0)
        low = 0x90;
    else if (at[0] == 0xF4)
        high = 0x8F;
    if (at[1] < low || at[1] > high)
        return 0;
    for (int i = 2; i < length; i++) {
        if (at[i] < 0x80 || at[i] > 0xBF)
            return 0;
    }
    return length;
}

bool parse_string(struct reader *reader, const char **out)
{
    char *to = ++reader->at;
    *out = to;
    while (*reader->at != '"') {
        unsigned char c = (unsigned char)*reader->at;
        if (c == '\0')
            return reader_fail(reader, "the string has no end");
        if (c < 0x20)
            return reader_fail(reader, "a control character must be escaped");
        if (c == '\\') {
            if (!parse_escape(reader, &to))
                return false;
            continue;
        }
        int length = c < 0x80 ? 1 : utf8_length((const unsigned char *)reader->at);
        if (length == 0)
            return reader_fail(reader, "not valid UTF-8");
        while (length-- > 0)
            *to++ = *reader->at++;
    }
    reader->at++;
    *to = '\0';
    return true;
}
