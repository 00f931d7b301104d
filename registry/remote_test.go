package registry

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

// A recurring fault has a constant message, though the original differs in our port and in times.
func TestMessagesAreSteady(t *testing.T) {
	reset := func(port int) string {
		err := &net.OpError{
			Op: "read", Net: "tcp", Err: syscall.ECONNRESET,
			Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 443},
		}
		return fmt.Sprintf("failing or missing response from U: Get: %v", err)
	}
	expired := func(now string) string {
		return "x509: certificate has expired or is not yet valid: current time " + now + " is after 2020-01-01T00:00:00Z"
	}
	tests := []struct{ name, message, again, want string }{
		{"a reset", reset(34567), reset(34568), "failing or missing response from U: Get: read tcp 10.0.0.2:443: connection reset by peer"},
		{"an expired certificate", expired("2026-11-22T06:00:00Z"), expired("2026-11-22T06:00:10Z"),
			"x509: certificate has expired or is not yet valid: current time is after 2020-01-01T00:00:00Z"},
		{"more than 1 KiB", strings.Repeat("x", 5000), strings.Repeat("x", 5000), strings.Repeat("x", 1024) + "…"},
		{"half the words of one", "current time 3", "current time 3", "current time 3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, again := normalizeCause(tt.message), normalizeCause(tt.again); got != tt.want || again != got {
				t.Errorf("got  %s\nthen %s\nwant %s", got, again, tt.want)
			}
		})
	}
	if got := normalizeCause(strings.Repeat("ü", 600)); len(got) != 1024+len("…") || !utf8.ValidString(got) {
		t.Errorf("a message of %d bytes", len(got))
	}
}
