package engine

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func show(f http2.Frame) string {
	h := f.Header()
	end, ack := "", ""
	if h.Flags.Has(http2.FlagDataEndStream) { // the same bit in HEADERS; in PING and SETTINGS it is ACK
		end, ack = " END", " ACK"
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		var fields []string
		for _, hf := range f.Fields {
			mark := ""
			if hf.Sensitive {
				mark = "!"
			}
			fields = append(fields, mark+hf.Name+"="+hf.Value)
		}
		return fmt.Sprintf("HEADERS %d %s%s", h.StreamID, strings.Join(fields, " "), end)
	case *http2.DataFrame:
		if len(f.Data()) > 40 {
			return fmt.Sprintf("DATA %d (%d)%s", h.StreamID, len(f.Data()), end)
		}
		return fmt.Sprintf("DATA %d %q%s", h.StreamID, f.Data(), end)
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("RST %d %v", h.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %v", f.LastStreamID, f.ErrCode)
	case *http2.WindowUpdateFrame:
		return fmt.Sprintf("WINDOW %d %d", h.StreamID, f.Increment)
	case *http2.PingFrame:
		return fmt.Sprintf("PING %s%s", f.Data[:], ack)
	case *http2.SettingsFrame:
		return "SETTINGS" + ack
	}
	return h.String()
}

func (p *peer) say(format string, args ...any) { p.r.feed(p.c, p.bytes(format, args...)) }

// bytes returns frames, together with what is not sent yet.
func (p *peer) bytes(format string, args ...any) []byte {
	for _, f := range frames(fmt.Sprintf(format, args...)) {
		must.Do(p.r.t, p.write(f))
	}
	b := bytes.Clone(p.to.Bytes())
	p.to.Reset()
	return b
}

// usual are frames that a story need not name.
var usual = []string{"SETTINGS", "PING fairlead", "WINDOW 0 1073676289"}

var (
	asRequest = regexp.MustCompile(`^HEADERS (\d+) :method=(\w+) :scheme=https :authority=a :path=/( |$)`)
	longValue = regexp.MustCompile(`=([^ =]{41,})`)
)

func (p *peer) told(want string) string {
	got := slices.DeleteFunc(p.see(), func(f string) bool {
		return slices.ContainsFunc(usual, func(u string) bool { return strings.HasPrefix(f, u) && !strings.Contains(want, u) })
	})
	for i, f := range got {
		f = asRequest.ReplaceAllString(f, "$2 $1$3")
		got[i] = longValue.ReplaceAllStringFunc(f, func(v string) string { return fmt.Sprintf("=(%d)", len(v)-1) })
	}
	return strings.Join(got, " | ")
}

func frames(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, " | ")
}

// wordsOf returns the words of a frame. Those in quotes are Go strings.
func wordsOf(frame string) (words []string) {
	for frame = strings.TrimSpace(frame); frame != ""; frame = strings.TrimSpace(frame) {
		quoted, err := strconv.QuotedPrefix(frame)
		if err == nil {
			word, _ := strconv.Unquote(quoted)
			words, frame = append(words, word), frame[len(quoted):]
			continue
		}
		word, after, _ := strings.Cut(frame, " ")
		words, frame = append(words, word), after
	}
	return words
}

var long = regexp.MustCompile(`^(.*)\((\d+)\)$`)

func lengthen(word string) string {
	m := long.FindStringSubmatch(word)
	if m == nil {
		return word
	}
	n, _ := strconv.Atoi(m[2])
	return m[1] + strings.Repeat("e", n) // of five bits in HPACK
}

// write writes a frame as show tells it, or a request: GET 1 x=y END. BYTES are written as they are; RAW is a frame of
// any stream, type, flags and content; BOMB 1 9 is a GET with the newest field of the table 9 times. The flag END ends
// the stream; with OPEN the field block goes on. A word in quotes is a Go string, and (n) stands for n bytes.
func (p *peer) write(frame string) error {
	w := wordsOf(frame)
	end, more := slices.Contains(w, "END"), slices.Contains(w, "OPEN")
	w = slices.DeleteFunc(w, func(word string) bool { return word == "END" || word == "OPEN" })
	for i := range w {
		w[i] = lengthen(w[i])
	}
	w = append(w, "", "", "")
	n, _ := strconv.Atoi(w[1])
	id := uint32(n)
	switch w[0] {
	case "BYTES":
		p.to.WriteString(w[1])
		return nil
	case "RAW":
		kind, flags := must.Get(strconv.Atoi(w[2]))(p.r.t), must.Get(strconv.Atoi(w[3]))(p.r.t)
		return p.fr.WriteRawFrame(http2.FrameType(kind), http2.Flags(flags), id, []byte(w[4]))
	case "SETTINGS":
		return p.settings(w[1:])
	case "PING":
		return p.fr.WritePing(w[2] == "ACK", [8]byte([]byte(w[1])))
	case "WINDOW":
		return p.fr.WriteWindowUpdate(id, uint32(must.Get(strconv.Atoi(w[2]))(p.r.t)))
	case "RST":
		return p.fr.WriteRSTStream(id, p.code(w[2]))
	case "GOAWAY":
		return p.fr.WriteGoAway(id, p.code(w[2]), []byte(w[3]))
	case "DATA":
		body := []byte(w[2])
		for ; len(body) > minMaxFrame; body = body[minMaxFrame:] {
			_ = p.fr.WriteData(id, false, body[:minMaxFrame])
		}
		return p.fr.WriteData(id, end, body)
	case "BOMB": // few bytes that decode to many
		block := append(p.encode(strings.Fields(okHead)...), bytes.Repeat([]byte{0x80 | 62}, must.Get(strconv.Atoi(w[2]))(p.r.t))...)
		return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true})
	case "CONTINUATION":
		return p.fr.WriteContinuation(id, !more, []byte(w[2]))
	case "HEADERS":
		w = w[2:]
	default:
		w = append([]string{":method=" + w[0], ":scheme=https", ":authority=a", ":path=/"}, w[2:]...)
	}
	fields := w[:len(w)-3]
	if more {
		return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode(fields...)})
	}
	p.headers(id, end, fields...)
	return nil
}

func (p *peer) code(name string) http2.ErrCode {
	for code := range http2.ErrCodeHTTP11Required + 1 {
		if code.String() == name {
			return code
		}
	}
	p.r.t.Fatalf("unknown code %s", name)
	return 0
}

func (p *peer) settings(words []string) error {
	var all []http2.Setting
	for _, w := range words {
		if w == "ACK" {
			return p.fr.WriteSettingsAck()
		}
		name, value, _ := strings.Cut(w, "=")
		n := len(all)
		for id := http2.SettingHeaderTableSize; id <= http2.SettingMaxHeaderListSize; id++ {
			if id.String() == name {
				all = append(all, http2.Setting{ID: id, Val: uint32(must.Get(strconv.Atoi(value))(p.r.t))})
				if id == http2.SettingHeaderTableSize {
					p.fr.ReadMetaHeaders.SetMaxDynamicTableSize(all[n].Val)
				}
			}
		}
		must.Be(p.r.t, w == "" || len(all) > n, "unknown setting %s", w)
	}
	return p.fr.WriteSettings(all...)
}

func (s *teller) speak(p *peer, words []string, rest string) {
	switch words[0] {
	case ">":
		p.say("%s", rest)
	case "!":
		id := strings.Fields(rest)[1]
		p.say("%s", rest)
		if p.c.side == up {
			s.speak(p, []string{"<"}, "RST "+id+" PROTOCOL_ERROR")
		} else {
			s.speak(s.member("c"), []string{"<"}, "HEADERS "+id+" :status=502 content-length=0 END")
		}
	case "<":
		got := p.told(rest)
		must.Be(s.t, got == rest, "%s: sees\n%s\nwant\n%s", s.at, got, rest)
	case "~":
		got := p.told(rest)
		for _, part := range frames(rest) {
			must.Be(s.t, strings.Contains(got, part), "%s: sees\n%s\nwant in it\n%s", s.at, got, part)
		}
	case "gets":
		p.gets(uint32(s.number(words[1])), uint32(s.number(words[2])))
	case "uploads":
		p.upload(uint32(s.number(words[1])), s.number(words[2]))
		s.e.report(1)
	case "silent":
		p.silent = true
	case "takes":
		p.silent = false
		p.take()
	case "closed":
		p.c.Wrote(p.c.take(), errRefused)
	case "lost":
		s.lose(p, errRefused)
	case "removed":
		s.e.remove(p.c)
	case "read":
		p.c.bytesIn = keyBytes
	case "written":
		p.c.bytesOut = keyBytes
	default:
		s.t.Fatalf("%s: unknown step", s.at)
	}
}

// repeat repeats what each peer sends, until the last one's connection is closed. %d is another stream each time, and
// for a backend its newest.
func (s *teller) repeat(most int, sends []string) (rounds int, last *peer) {
	for ; rounds < most && (last == nil || !last.c.closing); rounds++ {
		for _, send := range sends {
			name, text, _ := strings.Cut(send, " ")
			if name == "pass" {
				s.tick(s.duration(text))
				continue
			}
			last = s.member(name)
			id := 2*rounds + 1
			if last.c.side == down {
				id = int(last.c.maxID)
			}
			last.say("%s", strings.ReplaceAll(text, "%d", strconv.Itoa(id)))
		}
	}
	return rounds, last
}

// flood checks how long a flood lasts, and how much its sender, who reads nothing, makes us hold.
func (s *teller) flood(sends []string) (rounds int) {
	name, _, _ := strings.Cut(sends[len(sends)-1], " ")
	s.member(name).silent = true
	rounds, last := s.repeat(100_000, sends)
	check.Same(s.t, true, len(last.c.out) < 200<<10, "%s: %d bytes of output", s.at, len(last.c.out))
	last.take()
	check.Same(s.t, true, strings.Contains(last.told(""), "ENHANCE_YOUR_CALM"), "%s: calm", s.at)
	return rounds
}
