// Package behind is what an APIService says of its extension server while the cluster's own
// aggregator sends it to Fairlead. It keeps nothing, so all goroutines may use it.
package behind

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// The annotations of an APIService that the cluster's own aggregator sends to Fairlead: its spec
// names Fairlead's Service and CA, and these say where the extension server is and how it is
// verified. `kubectl fairlead adopt` writes them, and release makes the spec from them again.
const (
	// Service is NAMESPACE/NAME:PORT.
	Service = "fairlead.dev/service"
	// Bundle is what spec.caBundle was, in PEM. Empty means ca-from, or else the system's roots.
	Bundle = "fairlead.dev/ca-bundle"
	// Insecure is what spec.insecureSkipTLSVerify was.
	Insecure = "fairlead.dev/insecure-skip-tls-verify"
)

// Parse reads NAMESPACE/NAME:PORT. The cluster's own apiserver is no extension server: it would ask Fairlead again.
func Parse(text string) (*apiregistrationv1.ServiceReference, error) {
	at, number, err := net.SplitHostPort(text)
	namespace, name, _ := strings.Cut(at, "/")
	port, bad := strconv.ParseInt(number, 10, 32)
	if err != nil || bad != nil || len(validation.IsValidPortNum(int(port))) > 0 || at == "default/kubernetes" ||
		len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return nil, fmt.Errorf("%q is not <namespace>/<service>:<port> of an extension server", printable.Cut(text, 64))
	}
	return &apiregistrationv1.ServiceReference{Namespace: namespace, Name: name, Port: new(int32(port))}, nil
}

// Format is the reverse of Parse. The API has this default of the port, and allows any names.
func Format(ref *apiregistrationv1.ServiceReference) string {
	if ref == nil {
		return "no Service"
	}
	namespace, name := printable.Cut(ref.Namespace, 64), printable.Cut(ref.Name, 64)
	return printable.Line(fmt.Sprintf("%s/%s:%d", namespace, name, ptr.Deref(ref.Port, 443)))
}

// Server returns the Service of the extension server: the spec's, unless the cluster sends the APIService to Fairlead.
// Nil means none: what is Local stays so, whatever the annotations say: kube-apiserver corrects only the spec.
func Server(a *apiregistrationv1.APIService) *apiregistrationv1.ServiceReference {
	if ref, err := Parse(a.Annotations[Service]); err == nil && a.Spec.Service != nil {
		return ref
	}
	return a.Spec.Service
}
