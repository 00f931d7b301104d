package accesslog

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// Line is the access log's data of a request. Empty and zero fields are left out, except Method,
// Path, Verb, Status, Bytes and Took.
type Line struct {
	// Method and Path are as received. The query is left out because it can hold secrets.
	Method, Path string
	// Verb is Kubernetes' verb.
	Verb string
	// Status is the response's; 499 if the client went away before it.
	Status int
	// Bytes is the length of the response's body, In of the request's, as far as it was read.
	Bytes, In int64
	// Took is from the request's head to its end; nanoseconds in the log.
	Took time.Duration
	// Waited is from the request's head until it was sent to a backend, First until the response
	// head. Zero means at once or never, and is left out.
	Waited, First time.Duration
	// Endpoint is the last address tried, Tries the number of tries. New says that the connection
	// had answered nothing before. Zero Tries means not forwarded, or unknown.
	Endpoint string
	Tries    int
	New      bool
	// End says how the request ended: complete, refused here, or why it was aborted.
	End string
	// Cause is the error of a backend that made it end so.
	Cause string
	// Ended is when the request ended.
	Ended time.Time
	// Proto is the client's protocol, TLS its TLS version.
	Proto, TLS string
	// From is the client's address, without port.
	From string
	// User is the effective user, Impersonator the user that impersonates it.
	User, Impersonator string
	// APIService is the APIService of the path.
	APIService string
	// AuditID is the Audit-ID, as in the audit logs of kube-apiserver and of extension servers.
	AuditID string
}

func (l *Line) append(b []byte, at []byte) []byte {
	b = append(b, `{"time":"`...)
	b = append(b, at...)
	b = append(b, `","level":"INFO","msg":"request"`...) // as in all other lines of this process
	b = field(b, `,"method":`, l.Method)
	b = field(b, `,"path":`, l.Path)
	b = field(b, `,"verb":`, l.Verb)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(l.Status), 10)
	b = strconv.AppendInt(append(b, `,"bytes":`...), l.Bytes, 10)
	b = number(b, `,"in":`, l.In)
	b = number(b, `,"waited":`, int64(l.Waited))
	b = number(b, `,"first":`, int64(l.First))
	b = strconv.AppendInt(append(b, `,"took":`...), int64(l.Took), 10)
	b = optional(b, `,"end":`, l.End)
	b = optional(b, `,"cause":`, l.Cause)
	b = optional(b, `,"endpoint":`, l.Endpoint)
	b = number(b, `,"tries":`, int64(l.Tries))
	if l.New {
		b = append(b, `,"new":true`...)
	}
	b = optional(b, `,"proto":`, l.Proto)
	b = optional(b, `,"tls":`, l.TLS)
	b = optional(b, `,"from":`, l.From)
	b = optional(b, `,"user":`, l.User)
	b = optional(b, `,"impersonator":`, l.Impersonator)
	b = optional(b, `,"apiservice":`, l.APIService)
	b = optional(b, `,"audit":`, l.AuditID)
	return append(b, '}', '\n')
}

func number(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), value, 10)
}

func optional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return field(b, name, value)
}

// field appends a name, which needs no escaping, and a value. Clients' values rarely need escaping;
// others are escaped, so that no client can forge lines.
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
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case !unicode.IsGraphic(r) || r == utf8.RuneError: // also of an invalid byte
			b = printable.Append(b, r)
		default:
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return b
}

// clock formats times in RFC 3339 with milliseconds. It keeps the text of the current second.
type clock struct {
	second int64
	text   [len("2006-01-02T15:04:05.000Z")]byte
}

// at returns a text that is valid until the next call.
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
