package etcd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// Corrupt is the reason of the condition Available of an object that cannot be read.
const Corrupt = "Corrupt"

// vetting is a value.Transformer that replaces objects that cannot be decoded by stand-ins: one such object would
// otherwise fail every list, and with it the watch cache, as it does in kube-apiserver. The stand-in has the object's
// name and an error message. It claims no group-version, so nothing is routed by it. It can be deleted or replaced by a
// valid object, but kube-aggregator's validation rejects partial changes.
type vetting struct {
	value.Transformer // kube-apiserver's without an encryption configuration
	codec             runtime.Codec
	prefix            string // of the keys
}

func (v *vetting) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	const maxFault = 1 << 10 // bytes of the error about an object, which may contain the whole object
	name := strings.TrimPrefix(string(of.AuthenticatedData()), v.prefix)
	_, _, encrypted := v.Transformer.TransformFromStorage(ctx, data, of)
	fault := cmp.Or(encrypted, v.fault(data, name))
	if fault == nil {
		return data, false, nil
	}
	name = strings.ReplaceAll(name, "/", ":")                                      // no valid object has such a name
	id := uuid.NewHash(sha256.New(), uuid.Nil, of.AuthenticatedData(), 8).String() // of the key: a patch requires one
	why := printable.Cut(fault.Error(), maxFault)
	stand, err := json.Marshal(&apiregistrationv1.APIService{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiregistrationv1.SchemeGroupVersion.String(), Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(id)},
		Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: Corrupt,
			Message: "what etcd has under this name cannot be read: " + why,
		}}},
	})
	return stand, false, err
}

// fault returns why data is not a valid object of that name, nil if it is.
func (v *vetting) fault(data []byte, name string) error {
	o, _, err := v.codec.Decode(data, nil, one())
	if err != nil {
		return err
	}
	m, err := meta.Accessor(o)
	if err == nil && m.GetName() != name { // an object under a deeper key must not replace another
		err = fmt.Errorf("its metadata.name is %q", m.GetName())
	}
	return err
}
