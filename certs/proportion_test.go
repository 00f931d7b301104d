package certs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Whatever is in the cluster's authentication ConfigMap, taking it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	cas := make([][]byte, 160)
	for i := range cas {
		cas[i] = pki.NewCA(fmt.Sprint(i)).PEM()
	}
	list := func(n int) []byte {
		b, _ := json.Marshal(strings.Split(strings.Repeat("name,", n)+"name", ","))
		return b
	}
	row := func(name string, n int, of func(n int) map[string][]byte) proportion.Row {
		return proportion.Row{Name: name, N: n, Of: func(n int) (int, func() any) {
			data, sent := of(n), 0
			for _, b := range data {
				sent += len(b)
			}
			return sent, func() any {
				c := newClients(Config{TrustConfigMap: true}, func() {})
				return []any{c.takeConfigMap(data, nil), c}
			}
		}}
	}
	proportion.Check(t,
		row("client CAs and request-header CAs", 20, func(n int) map[string][]byte {
			return map[string][]byte{"client-ca-file": bytes.Join(cas[:n], nil), "requestheader-client-ca-file": bytes.Join(cas[80:80+n], nil)}
		}),
		row("allowed names", 500, func(n int) map[string][]byte { return map[string][]byte{"requestheader-allowed-names": list(n)} }),
		row("names of headers", 500, func(n int) map[string][]byte {
			return map[string][]byte{"requestheader-group-headers": list(n), "requestheader-extra-headers-prefix": list(n)}
		}),
		proportion.Row{Name: "CAs that are checked", N: 20, Of: func(n int) (int, func() any) {
			b := bytes.Join(cas[:n], nil)
			return len(b), func() any { f := Findings{}; f.CheckBundle("x", b); return f }
		}},
	)
}
