package registry

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestURLs(t *testing.T) {
	for _, tt := range []struct {
		value  string
		want   string // addresses, comma-separated
		called string // ServerName
		bad    string
	}{
		{value: "https://api.example.com", want: "api.example.com:443", called: "api.example.com"},
		{value: "https://API.Example.com:8443", want: "api.example.com:8443", called: "api.example.com"},
		{value: "https://10.0.0.1:1", want: "10.0.0.1:1", called: "10.0.0.1"},
		{value: "https://[2001:db8::1]", want: "[2001:db8::1]:443", called: "2001:db8::1"},
		{value: "https://[2001:DB8::1]:65535", want: "[2001:db8::1]:65535", called: "2001:db8::1"},
		{value: " https://b.example.com, https://a.example.com:2 ,https://a.example.com:1", want: "a.example.com:1,a.example.com:2,b.example.com:443", called: "a.example.com,b.example.com"},
		{value: "https://a.example.com,https://a.example.com:443,https://A.example.com", want: "a.example.com:443", called: "a.example.com"},
		{value: strings.Repeat("https://a.example.com,", maxURLs-1) + "https://a.example.com", want: "a.example.com:443", called: "a.example.com"},
		{value: "", bad: `"" is not https://`},
		{value: ",", bad: `"" is not https://`},
		{value: "https://a.example.com,", bad: `"" is not https://`},
		{value: "https://", bad: "neither a DNS name nor an IP address"},
		{value: "https://:443", bad: "neither a DNS name nor an IP address"},
		{value: "http://a.example.com", bad: `"http://a.example.com" is not https://`},
		{value: "HTTPS://a.example.com", bad: "is not https://"},
		{value: "unix:///run/a.sock", bad: "is not https://"},
		{value: "//a.example.com", bad: "is not https://"},
		{value: "a.example.com:443", bad: "is not https://"},
		{value: "https:a.example.com", bad: "is not https://"},
		{value: "https://a.example.com/", bad: "is not https://"},
		{value: "https://a.example.com/apis", bad: "is not https://"},
		{value: "https://a.example.com?", bad: "is not https://"},
		{value: "https://a.example.com?x=y", bad: "is not https://"},
		{value: "https://a.example.com#", bad: "is not https://"},
		{value: "https://a.example.com#x", bad: "is not https://"},
		{value: "https://me@a.example.com", bad: "is not https://"},
		{value: "https://me:secret@a.example.com", bad: "is not https://"},
		{value: "https://@a.example.com", bad: "is not https://"},
		{value: "https://a.example.com\\@b.example.com", bad: "is not https://"},
		{value: "https://%61.example.com", bad: "is not https://"},
		{value: "https://[fe80::1%25eth0]", bad: "is not https://"},
		{value: "https://2001:db8::1", bad: "is not https://"},
		{value: "https://a_b.example.com", bad: `"a_b.example.com" is neither`},
		{value: "https://a.example.com.", bad: "neither"},
		{value: "https://ä.example.com", bad: "is not https://"},
		{value: "https://\u212aubernetes.example.com", bad: "is not https://"}, // the Kelvin sign, which becomes a k in lower case
		{value: "https://*.example.com", bad: "neither"},
		{value: "https://a b", bad: "is not https://"},
		{value: "https://a.example.com\r\nX: y", bad: "is not https://"},
		{value: "https://a.example.com:0", bad: "outside 1 to 65535"},
		{value: "https://a.example.com:65536", bad: "outside 1 to 65535"},
		{value: "https://a.example.com:99999999999999999999", bad: "outside 1 to 65535"},
		{value: "https://a.example.com:https", bad: "is not https://"},
		{value: "https://a.example.com:-1", bad: "is not https://"},
		{value: strings.Repeat("https://a.example.com,", maxURLs) + "https://a.example.com", bad: "more than 32 URLs"},
		{value: "https://" + strings.Repeat("a", 300), bad: "neither"},
	} {
		u := readURLs(tt.value)
		if tt.bad != "" {
			if !strings.Contains(u.fault, tt.bad) || len(u.addresses) > 0 || !u.given() || len(u.fault) > 200 {
				t.Errorf("%q: %+v, want %q", tt.value, u, tt.bad)
			}
			continue
		}
		b := u.backend()
		if got := strings.Join(u.addresses, ","); got != tt.want || u.fault != "" || b.ServerName != tt.called {
			t.Errorf("%q: %+v, called %q; want %s, called %q", tt.value, u, b.ServerName, tt.want, tt.called)
		}
		if again := readURLs(b.URLs); !slices.Equal(again.addresses, u.addresses) {
			t.Errorf("%q is shown as %s, which is %+v", tt.value, b.URLs, again)
		}
		for _, a := range u.addresses {
			if host, _, _ := net.SplitHostPort(a); b.NameAt(a) != host {
				t.Errorf("%q: %s is sent to %s", tt.value, b.NameAt(a), a)
			}
		}
	}
}

// FuzzURLs checks that Fairlead dials the host and port that a reader sees in a URL, and accepts nothing ambiguous.
func FuzzURLs(f *testing.F) {
	for _, s := range []string{
		"https://a.example.com", "https://[::1]:8443,https://10.0.0.1", "https://a@b", "https://a/b", "https://a:0", "https://a?b#c", "https://%61", "https://[::ffff:7f00:1%25x]:1", "https://127.1", ",",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		u := readURLs(value)
		if (u.fault == "") != (len(u.addresses) > 0) || len(u.addresses) > maxURLs || len(u.fault) > 400 || strings.ContainsAny(u.fault, "\r\n\x00") {
			t.Fatalf("%q: %+v", value, u)
		}
		var want []string
		for text := range strings.SplitSeq(value, ",") {
			parsed, err := url.Parse(strings.TrimSpace(text))
			if u.fault != "" {
				return
			}
			if err != nil || parsed.Scheme != "https" || parsed.User != nil || parsed.Path+parsed.RawQuery+parsed.Fragment+parsed.Opaque != "" {
				t.Fatalf("%q is accepted in %q", text, value)
			}
			port := parsed.Port()
			if port == "" {
				port = "443"
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				t.Fatalf("%q is accepted with that port", text)
			}
			host := strings.ToLower(parsed.Hostname())
			if addr, err := netip.ParseAddr(host); (err != nil || addr.Zone() != "") && len(validation.IsDNS1123Subdomain(host)) > 0 {
				t.Fatalf("%q is accepted with that host", text)
			}
			want = append(want, net.JoinHostPort(host, strconv.FormatUint(n, 10)))
		}
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(want, u.addresses) {
			t.Errorf("%q: %q, want %q", value, u.addresses, want)
		}
	})
}
