package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// Line is what is written of a request. Strings that are empty are left out, but for Method, Path and Verb.
type Line struct {
	// Method and Path are as received. The query is not for the log: it can hold secrets.
	Method, Path string
	// Verb is Kubernetes' verb.
	Verb string
	// Status is the answer's; 499 when the client went away before there was one.
	Status int
	// Bytes is the length of the answer's body.
	Bytes int64
	// Took is from the request's head to its end; in the log in nanoseconds.
	Took time.Duration
	// Ended is when the request ended. Zero: now.
	Ended time.Time
	// Proto is the client's protocol.
	Proto string
	// From is the client's address, without port.
	From string
	// User is as whom the request was served, Impersonator who asked for that.
	User, Impersonator string
	// APIService is the one that the path belongs to.
	APIService string
	// AuditID is the request's Audit-ID, which leads to the audit logs of kube-apiserver and of extension servers.
	AuditID string
}

func (l *Line) append(b []byte, at []byte) []byte {
	b = append(b, `{"time":"`...)
	b = append(b, at...)
	b = append(b, `","level":"INFO","msg":"request"`...) // as all other lines of this process have it
	b = field(b, `,"method":`, l.Method)
	b = field(b, `,"path":`, l.Path)
	b = field(b, `,"verb":`, l.Verb)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(l.Status), 10)
	b = strconv.AppendInt(append(b, `,"bytes":`...), l.Bytes, 10)
	b = strconv.AppendInt(append(b, `,"took":`...), int64(l.Took), 10)
	b = optional(b, `,"proto":`, l.Proto)
	b = optional(b, `,"from":`, l.From)
	b = optional(b, `,"user":`, l.User)
	b = optional(b, `,"impersonator":`, l.Impersonator)
	b = optional(b, `,"apiservice":`, l.APIService)
	b = optional(b, `,"audit":`, l.AuditID)
	return append(b, '}', '\n')
}

func optional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return field(b, name, value)
}

// field appends a name, which is written as it is, and a value. What clients send is nearly always plain; the rest is escaped, so that nobody can write
// lines of his own.
func field(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, '"')
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			b = append(b, value[:i]...)
			return append(escape(b, value[i:]), '"')
		}
	}
	b = append(b, value...)
	return append(b, '"')
}

func escape(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1: // a byte that is no UTF-8
			b = append(b, `\ufffd`...)
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return b
}

// clock writes times down, RFC 3339 with milliseconds. It keeps what it wrote of the current second.
type clock struct {
	second int64
	text   [len("2006-01-02T15:04:05.000Z")]byte
}

// at returns a text that lives until the next call.
func (c *clock) at(t time.Time) []byte {
	const whole = len("2006-01-02T15:04:05.")
	if s := t.Unix(); s != c.second {
		c.second = s
		copy(c.text[:], t.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	ms := t.Nanosecond() / 1e6
	c.text[whole], c.text[whole+1], c.text[whole+2] = byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10) //nolint:gosec // below 1,000
	return c.text[:]
}
